//! A command line with places to fill in.

use std::path::PathBuf;

/// A command line of a declaration: words, in which `{name}` is filled in. No
/// shell reads it. Single quotes keep spaces together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command(Vec<String>);

/// What is filled in.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// `{device}` is the first, `{devices}` all.
    pub devices: Vec<PathBuf>,
    /// `{directory}`: where it is mounted.
    pub directory: PathBuf,
    /// `{under}`: a second directory, for a file system below another.
    pub under: PathBuf,
    /// `{links}`: a directory that holds links to the devices and nothing else.
    pub links: PathBuf,
    /// `{name}`: unique on this machine.
    pub name: String,
    /// `{mkfs}`: options of mkfs, any number of words.
    pub mkfs: String,
    /// `{mount}`: mount options, one word.
    pub mount: String,
    /// `{butterfs}`: the program itself.
    pub butterfs: PathBuf,
}

/// Names that [`Command::fill`] knows.
pub(super) const NAMES: &[&str] = &[
    "device",
    "devices",
    "directory",
    "under",
    "links",
    "name",
    "mkfs",
    "mount",
    "butterfs",
];

impl Command {
    /// Splits a line; `None` if a quote is not closed or the line is empty.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '\'' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                c if c.is_whitespace() && !quoted => words.extend(word.take()),
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        (!quoted && !words.is_empty()).then_some(Self(words))
    }

    /// The words.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// The words with everything filled in. If `{mount}` is empty, the word is
    /// removed, and a `-o` before it.
    pub fn fill(&self, place: &Place) -> Vec<String> {
        let path = |path: &PathBuf| path.display().to_string();
        let mut filled: Vec<String> = Vec::new();
        for word in &self.0 {
            match word.as_str() {
                "{mkfs}" => filled.extend(place.mkfs.split_whitespace().map(str::to_owned)),
                "{devices}" => filled.extend(place.devices.iter().map(path)),
                "{mount}" if place.mount.is_empty() => {
                    filled.pop_if(|before| before == "-o");
                }
                word => {
                    let first = place.devices.first().map(path).unwrap_or_default();
                    let all: Vec<String> = place.devices.iter().map(path).collect();
                    let mut text = word.to_owned();
                    for (name, value) in [
                        ("{device}", first),
                        ("{devices}", all.join(" ")),
                        ("{directory}", path(&place.directory)),
                        ("{under}", path(&place.under)),
                        ("{links}", path(&place.links)),
                        ("{name}", place.name.clone()),
                        ("{mkfs}", place.mkfs.clone()),
                        ("{mount}", place.mount.clone()),
                        ("{butterfs}", path(&place.butterfs)),
                    ] {
                        text = text.replace(name, &value);
                    }
                    filled.push(text);
                }
            }
        }
        filled
    }

    /// The first name in braces that [`Command::fill`] does not know.
    pub(super) fn unknown(&self) -> Option<&str> {
        self.0.iter().find_map(|word| {
            let inner = word.split('{').skip(1);
            inner
                .filter_map(|rest| rest.split_once('}'))
                .map(|(name, _)| name)
                .find(|name| name.chars().all(|c| c.is_ascii_lowercase()) && !NAMES.contains(name))
        })
    }
}
