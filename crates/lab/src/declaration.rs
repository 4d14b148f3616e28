//! TOML that people write. Every mistake is reported with its line, and a wrong
//! word with the nearest right one.

use std::collections::BTreeMap;
use std::ops::Range;
use toml::de::{DeArray, DeTable, DeValue};

/// A mistake in a file that somebody wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct Mistake {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what would be right if that is known.
    pub what: String,
}

/// A value as text, and the line it stands on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word {
    /// The value.
    pub text: String,
    /// Its line, from 1.
    pub line: usize,
}

/// A file that is being read.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    pub(crate) fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }

    pub(crate) fn mistake(&self, line: usize, what: impl Into<String>) -> Mistake {
        Mistake {
            file: self.file.to_owned(),
            line,
            what: what.into(),
        }
    }

    /// The whole file.
    pub(crate) fn parse(&self) -> Result<DeTable<'_>, Mistake> {
        match DeTable::parse(self.text) {
            Ok(table) => Ok(table.into_inner()),
            Err(error) => {
                let line = error.span().map_or(1, |span| self.line(&span));
                Err(self.mistake(line, error.message()))
            }
        }
    }
}

/// ", did you mean ...?" if a known word is near; otherwise the known words.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let distance = |other: &&str| {
        let plain = |text: &str| text.to_lowercase().replace(['_', ' '], "-");
        strsim::damerau_levenshtein(&plain(word), &plain(other))
    };
    let best = known
        .iter()
        .min_by_key(|other| (distance(other), std::cmp::Reverse(other.len())));
    match best {
        Some(best) if distance(best) <= 2.max(word.len() / 3) => {
            format!("; did you mean `{best}`?")
        }
        _ if known.is_empty() => String::new(),
        _ => format!("; there are {}", known.join(", ")),
    }
}

/// A table whose keys are looked up by name.
pub(crate) struct Fields<'a> {
    source: Source<'a>,
    table: &'a DeTable<'a>,
    /// Line of the table itself.
    pub(crate) line: usize,
    /// What it describes, for messages ("a group").
    what: &'static str,
}

impl<'a> Fields<'a> {
    /// A table that may have the `known` keys and no other.
    pub(crate) fn new(
        source: Source<'a>,
        table: &'a DeTable<'a>,
        line: usize,
        (what, known): (&'static str, &[&str]),
    ) -> Result<Self, Mistake> {
        let fields = Self {
            source,
            table,
            line,
            what,
        };
        for (key, line) in fields.keys() {
            if !known.contains(&key) {
                let hint = nearest(key, known.iter().copied());
                return Err(source.mistake(line, format!("{what} has no key `{key}`{hint}")));
            }
        }
        Ok(fields)
    }

    /// A table that may have any keys.
    pub(crate) fn free(source: Source<'a>, table: &'a DeTable<'a>, line: usize) -> Self {
        Self {
            source,
            table,
            line,
            what: "this table",
        }
    }

    /// Keys in the order of the file, with their lines.
    pub(crate) fn keys(&self) -> Vec<(&'a str, usize)> {
        let mut keys: Vec<_> = self
            .table
            .keys()
            .map(|key| (key.span().start, key))
            .collect();
        keys.sort_by_key(|(start, _)| *start);
        keys.into_iter()
            .map(|(_, key)| (key.get_ref().as_ref(), self.source.line(&key.span())))
            .collect()
    }

    fn get(&self, name: &str) -> Option<(&'a DeValue<'a>, usize)> {
        let (_, value) = self.table.iter().find(|(key, _)| key.get_ref() == name)?;
        Some((value.get_ref(), self.source.line(&value.span())))
    }

    pub(crate) fn error(&self, line: usize, what: impl Into<String>) -> Mistake {
        self.source.mistake(line, what)
    }

    /// A string, number or boolean as text.
    pub(crate) fn word(&self, name: &str) -> Result<Option<Word>, Mistake> {
        let Some((value, line)) = self.get(name) else {
            return Ok(None);
        };
        match scalar(value) {
            Some(text) => Ok(Some(Word { text, line })),
            None => Err(self.error(line, format!("`{name}` is one value, not {}", kind(value)))),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, Mistake> {
        Ok(self.word(name)?.map(|word| word.text))
    }

    pub(crate) fn needed(&self, name: &str) -> Result<Word, Mistake> {
        self.word(name)?
            .ok_or_else(|| self.error(self.line, format!("{} needs a `{name}`", self.what)))
    }

    /// A value, or a list of values.
    pub(crate) fn words(&self, name: &str) -> Result<Vec<Word>, Mistake> {
        let Some((value, line)) = self.get(name) else {
            return Ok(Vec::new());
        };
        if let Some(text) = scalar(value) {
            return Ok(vec![Word { text, line }]);
        }
        let list = value.as_array().ok_or_else(|| {
            self.error(
                line,
                format!("`{name}` is a value or a list, not {}", kind(value)),
            )
        })?;
        if list.is_empty() {
            return Err(self.error(
                line,
                format!("the list `{name}` is empty: no cell would be left"),
            ));
        }
        list.iter()
            .map(|item| {
                let line = self.source.line(&item.span());
                let text = scalar(item.get_ref()).ok_or_else(|| {
                    self.error(line, format!("`{name}` lists values, not tables"))
                })?;
                Ok(Word { text, line })
            })
            .collect()
    }

    /// A whole number that is not negative.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Mistake> {
        let Some(word) = self.word(name)? else {
            return Ok(None);
        };
        word.text.parse().map(Some).map_err(|_| {
            self.error(
                word.line,
                format!("`{name}` is a whole number, not `{}`", word.text),
            )
        })
    }

    /// Seconds; fractions are allowed.
    pub(crate) fn seconds(&self, name: &str) -> Result<Option<f64>, Mistake> {
        let Some(word) = self.word(name)? else {
            return Ok(None);
        };
        match word.text.parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(Some(value)),
            _ => Err(self.error(
                word.line,
                format!("`{name}` is a number of seconds, not `{}`", word.text),
            )),
        }
    }

    /// Bytes ("512M").
    pub(crate) fn size(&self, name: &str) -> Result<Option<u64>, Mistake> {
        let Some(word) = self.word(name)? else {
            return Ok(None);
        };
        parse_size(&word.text).map(Some).ok_or_else(|| {
            self.error(
                word.line,
                format!("`{name}` is a size such as 512M, not `{}`", word.text),
            )
        })
    }

    /// One of some words.
    pub(crate) fn one_of(&self, name: &str, known: &[&str]) -> Result<Option<String>, Mistake> {
        let Some(word) = self.word(name)? else {
            return Ok(None);
        };
        if known.contains(&word.text.as_str()) {
            return Ok(Some(word.text));
        }
        let hint = nearest(&word.text, known.iter().copied());
        Err(self.error(
            word.line,
            format!("`{name}` cannot be `{}`{hint}", word.text),
        ))
    }

    /// Whether it is true; false if it is absent.
    pub(crate) fn yes(&self, name: &str) -> Result<bool, Mistake> {
        Ok(self.one_of(name, &["true", "false"])?.as_deref() == Some("true"))
    }

    /// Tables under `[[name]]`.
    pub(crate) fn tables(&self, name: &str) -> Result<Vec<(&'a DeTable<'a>, usize)>, Mistake> {
        let Some((value, line)) = self.get(name) else {
            return Ok(Vec::new());
        };
        let wrong = || self.error(line, format!("`{name}` is written as [[{name}]]"));
        let list: &'a DeArray<'a> = value.as_array().ok_or_else(wrong)?;
        list.iter()
            .map(|item| {
                let table = item.get_ref().as_table().ok_or_else(wrong)?;
                let first = table.keys().map(|key| key.span().start).min();
                let at = first.map_or(item.span(), |start| start..start);
                Ok((table, self.source.line(&at)))
            })
            .collect()
    }

    /// The table under `[name]`.
    pub(crate) fn table(&self, name: &str) -> Result<Option<(&'a DeTable<'a>, usize)>, Mistake> {
        let Some((value, line)) = self.get(name) else {
            return Ok(None);
        };
        let table = value
            .as_table()
            .ok_or_else(|| self.error(line, format!("`{name}` is a table: [{name}]")))?;
        Ok(Some((table, line)))
    }

    /// All values of a table of lists.
    pub(crate) fn all_words(&self) -> Result<BTreeMap<String, Vec<Word>>, Mistake> {
        self.keys()
            .into_iter()
            .map(|(key, _)| Ok((key.to_owned(), self.words(key)?)))
            .collect()
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
        DeValue::Float(number) => number.as_str().replace('_', ""),
        DeValue::Boolean(value) => value.to_string(),
        _ => return None,
    })
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
        DeValue::Datetime(_) => "a date",
        _ => "this",
    }
}

/// Bytes of "512M", "2g", "4096"; powers of 1024.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Bytes for people ("512 MiB").
pub fn show_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1_u64 << shift) as f64;
            return if value.fract() == 0.0 {
                format!("{value} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} bytes")
}
