//! Sizes as people write and read them.

/// Parses `4096`, `16k`, `1g`, `1GiB`; powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let unit = unit.to_ascii_lowercase();
    let letter = unit.strip_suffix("ib").unwrap_or(&unit);
    let letter = letter.strip_suffix('b').unwrap_or(letter);
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        "e" => 6,
        _ => {
            return Err(format!(
                "`{text}` is no size; write for example 512m or 20g"
            ));
        }
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << (10 * power)))
        .ok_or_else(|| format!("`{text}` is no size that fits"))
}

/// `1.50GiB`, as the Btrfs tools print it.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut whole = bytes;
    while whole >= 1024 {
        whole >>= 10;
        unit += 1;
    }
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    format!("{value:.2}{}", UNITS[unit])
}

/// `1.5K`, `12M`: at most four characters and a letter, rounded up, as ls(1)
/// and du(1) print sizes with -h.
pub fn short(bytes: u64) -> String {
    const LETTERS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let (mut unit, mut power) = (0, 1_u64);
    // What would be rounded up to 1024 takes the next letter.
    while unit + 1 < LETTERS.len() && bytes.div_ceil(power) >= 1024 {
        unit += 1;
        power = 1 << (10 * unit);
    }
    let tenths = u128::from(bytes) * 10;
    let tenths = tenths.div_ceil(power.into());
    if unit == 0 || tenths > 99 {
        return format!("{}{}", bytes.div_ceil(power), LETTERS[unit]);
    }
    format!("{}.{}{}", tenths / 10, tenths % 10, LETTERS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(parse("16k"), Ok(16384));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("7"), Ok(7));
        assert!(parse("99999e").is_err());
        assert!(parse("ten").is_err());
        assert_eq!(human(0), "0.00B");
        assert_eq!(human(3 << 29), "1.50GiB");
        assert_eq!(human(u64::MAX), "16.00EiB");
        assert_eq!(short(0), "0");
        assert_eq!(short(1023), "1023");
        assert_eq!(short(1024), "1.0K");
        assert_eq!(short(1025), "1.1K");
        assert_eq!(short(10_000), "9.8K");
        assert_eq!(short(10_240), "10K");
        assert_eq!(short((1 << 20) - 1), "1.0M");
        assert_eq!(short(u64::MAX), "16E");
    }
}
