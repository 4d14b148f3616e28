//! Axes and their values in the words of a reader.

/// A size such as 24m, written out; `None` if it is not a size.
fn size(value: &str) -> Option<String> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let unit = match unit {
        "k" | "K" => "KiB",
        "m" | "M" => "MiB",
        "g" | "G" => "GiB",
        "t" | "T" => "TiB",
        _ => return None,
    };
    let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
    is_number.then(|| format!("{digits} {unit}"))
}

/// A count with its noun: 1 client, 25,000 rows.
fn count(value: &str, one: &str, many: &str) -> Option<String> {
    let number: u64 = value.parse().ok()?;
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    Some(format!(
        "{grouped} {}",
        if number == 1 { one } else { many }
    ))
}

/// A value of an axis, as a reader says it.
pub(super) fn in_words(axis: &str, value: &str) -> String {
    let words = match axis {
        "file-system" | "workload" | "profile" => Some(value.to_owned()),
        "mkfs" => Some(format!("mkfs {value}")),
        "mount" => Some(format!("-o {value}")),
        "devices" => count(value, "device", "devices"),
        "concurrency" => count(value, "client", "clients"),
        // How much of the data a compressor can take away. Results of older
        // versions call it by the opposite.
        "compressible" | "entropy" => match value {
            "0" => Some("data that do not compress".to_owned()),
            "100" => Some("data that are all zeros to a compressor".to_owned()),
            share => Some(format!("data of which {share} % compress away")),
        },
        "cache" => Some(format!("{value} cache")),
        "scheduler" => Some(format!("scheduler {value}")),
        "wake" => Some(format!("idle processors {value}")),
        "history" => Some(format!("after: {value}")),
        "buffer-pool" => size(value).map(|size| format!("{size} buffer pool")),
        "rows" => count(value, "row", "rows"),
        "tables" => count(value, "table", "tables"),
        "files" => count(value, "file", "files"),
        "time" => count(value, "second", "seconds"),
        "record" => size(value).map(|size| format!("records of {size}")),
        "size" => size(value),
        "rate" if value == "0" => Some("as fast as it goes".to_owned()),
        "rate" => value
            .strip_suffix('%')
            .map(|share| format!("at {share} % of what the slowest can")),
        _ => None,
    };
    words.unwrap_or_else(|| {
        let value = size(value).unwrap_or_else(|| value.to_owned());
        format!("{} {value}", axis.replace('-', " "))
    })
}

/// Conditions, with what they share said once: "1, 2, 5 clients".
pub(super) fn joined(all: &[String]) -> String {
    let parts: Vec<Vec<&str>> = all.iter().map(|one| one.split(", ").collect()).collect();
    let Some(first) = parts.first() else {
        return String::new();
    };
    let is_alike = parts.iter().all(|other| other.len() == first.len());
    let differing: Vec<usize> = (0..first.len())
        .filter(|&place| is_alike && parts.iter().any(|other| other[place] != first[place]))
        .collect();
    if let ([place], true) = (&differing[..], all.len() > 1) {
        let values: Vec<&str> = parts.iter().map(|one| one[*place]).collect();
        // "1 client" and "2 clients" share their noun, too.
        let nouns = values.iter().map(|value| value.split_once(' '));
        let noun = nouns.clone().next_back().flatten().map(|(_, noun)| noun);
        let is_counted = nouns.clone().all(|split| {
            split.is_some_and(|(number, own)| {
                number.replace(',', "").parse::<u64>().is_ok()
                    && noun
                        .is_some_and(|noun| own.trim_end_matches('s') == noun.trim_end_matches('s'))
            })
        });
        let together = match (is_counted, noun) {
            (true, Some(noun)) => {
                let numbers: Vec<&str> = nouns.flatten().map(|(number, _)| number).collect();
                format!("{} {noun}", numbers.join(", "))
            }
            _ => values.join(" and "),
        };
        let others = first.iter().enumerate().filter(|(at, _)| at != place);
        let mut said: Vec<&str> = others.map(|(_, part)| *part).collect();
        said.insert((*place).min(said.len()), &together);
        return said.join(", ");
    }
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_words() {
        for (axis, value, words) in [
            ("buffer-pool", "24m", "24 MiB buffer pool"),
            ("concurrency", "16", "16 clients"),
            ("concurrency", "1", "1 client"),
            ("rows", "25000", "25,000 rows"),
            ("entropy", "50", "data of which 50 % compress away"),
            ("compressible", "0", "data that do not compress"),
            ("mount", "noatime", "-o noatime"),
            ("odd-axis", "x", "odd axis x"),
            ("size", "", "size "),
            ("size", "ü", "size ü"),
        ] {
            assert_eq!(in_words(axis, value), words);
        }
    }

    #[test]
    fn what_conditions_share_is_said_once() {
        let all = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            joined(&all(&["1 client", "2 clients", "50 clients"])),
            "1, 2, 50 clients"
        );
        assert_eq!(
            joined(&all(&["oltp, 1 client", "oltp, 2 clients"])),
            "oltp, 1, 2 clients"
        );
        assert_eq!(
            joined(&all(&["warm cache", "cold cache"])),
            "warm cache and cold cache"
        );
        assert_eq!(
            joined(&all(&["oltp", "files, cold cache"])),
            "oltp; files, cold cache"
        );
        assert_eq!(joined(&all(&["oltp"])), "oltp");
        assert_eq!(joined(&[]), "");
    }
}
