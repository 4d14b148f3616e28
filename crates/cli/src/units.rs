//! Units of sizes, as the Btrfs tools take them.

use clap::Args;
use serde::{Deserialize, Serialize};

/// In which units sizes are printed.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of btrfs-progs"
)]
pub struct Units {
    /// Bytes.
    #[arg(short = 'b', long)]
    raw: bool,
    /// The unit that fits, by 1024 (default).
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// The unit that fits, by 1000.
    #[arg(short = 'H')]
    human_decimal: bool,
    /// By 1024.
    #[arg(long)]
    iec: bool,
    /// By 1000.
    #[arg(long, conflicts_with = "iec")]
    si: bool,
    /// KiB, or kB with --si.
    #[arg(short, long)]
    kbytes: bool,
    /// MiB, or MB with --si.
    #[arg(short, long)]
    mbytes: bool,
    /// GiB, or GB with --si.
    #[arg(short, long)]
    gbytes: bool,
    /// TiB, or TB with --si.
    #[arg(short, long)]
    tbytes: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

impl Units {
    /// The width of a size, in columns.
    pub const fn width(self) -> usize {
        match self {
            Self {
                raw: false,
                human_decimal: false,
                si: false,
                kbytes: false,
                mbytes: false,
                gbytes: false,
                tbytes: false,
                ..
            } => 10,
            _ => 18,
        }
    }

    /// A size in these units.
    pub fn size(&self, bytes: u64) -> String {
        const BINARY: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        const DECIMAL: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
        if self.raw {
            return bytes.to_string();
        }
        let (base, names) = match self.si || self.human_decimal {
            true => (1000_u64, DECIMAL),
            false => (1024, BINARY),
        };
        let asked = [self.kbytes, self.mbytes, self.gbytes, self.tbytes];
        if let Some(at) = asked.iter().position(|asked| *asked) {
            let power = base.pow(u32::try_from(at + 1).unwrap_or(0));
            return format!("{:.2}{}", bytes as f64 / power as f64, names[at + 1]);
        }
        // Rounded twice, as by the Btrfs tools: down to the next smaller unit,
        // and then as an `f32`.
        let (mut unit, mut below, mut whole) = (0, bytes, bytes);
        while whole >= base {
            (unit, below, whole) = (unit + 1, whole, whole / base);
        }
        let shown = match unit {
            0 => bytes as f32,
            _ => below as f32 / base as f32,
        };
        format!("{shown:.2}{}", names[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_btrfs_tools() {
        let bytes = 8 << 20;
        let plain = Units::default();
        assert_eq!(plain.size(bytes), "8.00MiB");
        assert_eq!(plain.size(0), "0.00B");
        assert_eq!(Units { raw: true, ..plain }.size(bytes), "8388608");
        let decimal = Units {
            human_decimal: true,
            ..plain
        };
        assert_eq!(decimal.size(bytes), "8.39MB");
        let kib = Units {
            kbytes: true,
            ..plain
        };
        assert_eq!(kib.size(bytes), "8192.00KiB");
        let gb = Units {
            gbytes: true,
            si: true,
            ..plain
        };
        assert_eq!(gb.size(bytes), "0.01GB");
    }
}
