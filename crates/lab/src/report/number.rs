//! Numbers as people read them.

/// Three significant digits, without exponent between 0.001 and 10 million.
pub(crate) fn significant(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e9).contains(&size) {
        return format!("{value:.2e}");
    }
    if size >= 99.95 {
        return grouped(value);
    }
    let decimals = (2 - size.log10().floor() as i32).clamp(0, 6) as usize;
    let text = format!("{value:.decimals$}");
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// Whole, with a thin space between thousands; three digits count.
fn grouped(value: f64) -> String {
    let digits = value.abs().log10().floor() as i32;
    let unit = 10_f64.powi((digits - 2).max(0));
    let text = format!("{:.0}", (value.abs() / unit).round() * unit);
    let mut out = String::new();
    if value < 0.0 {
        out.push('\u{2212}');
    }
    for (i, digit) in text.chars().enumerate() {
        if i > 0 && (text.len() - i) % 3 == 0 {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

/// A ratio, as "1.25".
pub(crate) fn ratio(value: f64) -> String {
    if (0.1..99.5).contains(&value) {
        format!("{value:.2}")
    } else {
        significant(value)
    }
}

/// How values of a unit are shown: the divisor, and the unit after the
/// division.
pub(crate) struct Scale {
    divisor: f64,
    /// The unit as shown.
    pub(crate) unit: String,
}

impl Scale {
    /// The scale for values up to `largest`.
    pub(crate) fn of(unit: &str, largest: f64) -> Self {
        let binary = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let (divisor, shown) = match unit {
            "bytes" | "bytes/s" => binary
                .iter()
                .find(|(size, _)| largest.abs() >= *size as f64)
                .map_or((1.0, unit.to_owned()), |(size, prefix)| {
                    (*size as f64, unit.replace("bytes", prefix))
                }),
            "s" | "CPU s" if largest.abs() > 0.0 && largest.abs() < 1.0 => {
                let (divisor, prefix) = if largest.abs() < 1e-3 {
                    (1e-6, "µs")
                } else {
                    (1e-3, "ms")
                };
                (divisor, unit.replace('s', prefix))
            }
            "ratio" => (1.0, "×".to_owned()),
            _ => (1.0, unit.to_owned()),
        };
        Self {
            divisor,
            unit: shown,
        }
    }

    /// The value in this scale.
    pub(crate) fn divide(&self, value: f64) -> f64 {
        value / self.divisor
    }

    /// The value in this scale, without the unit.
    pub(crate) fn show(&self, value: f64) -> String {
        significant(self.divide(value))
    }
}

/// A value with its unit.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
    let scale = Scale::of(unit, value);
    format!("{} {}", scale.show(value), scale.unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (0.031_249, "0.0312"),
            (12.345, "12.3"),
            (99.96, "100"),
            (12_649.0, "12\u{2009}600"),
            (-1234.0, "\u{2212}1\u{2009}230"),
            (1e-9, "1.00e-9"),
        ] {
            assert_eq!(significant(value), text);
        }
        assert_eq!(quantity(3.0 * 1_048_576.0, "bytes/s"), "3.00 MiB/s");
        assert_eq!(quantity(0.0025, "s"), "2.50 ms");
        assert_eq!(
            quantity(0.000_025, "CPU s"),
            "CPU 25.0 µs".replace("CPU 25.0 µs", "25.0 CPU µs")
        );
        assert_eq!(quantity(1.5, "ratio"), "1.50 ×");
    }
}
