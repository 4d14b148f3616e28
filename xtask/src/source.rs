//! Source files and their words.

use std::fs;
use std::path::{Path, PathBuf};

/// All Rust files below a folder, in order; none if the folder does not exist.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A file's text.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A source text without its tests.
pub fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

/// The words of a source text: names, `::`, and single signs. Comments,
/// strings and characters are left out.
pub fn words(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let at = |index: usize| letters.get(index).copied().unwrap_or('\n');
    let mut words = Vec::new();
    let mut index = 0;
    while index < letters.len() {
        let letter = at(index);
        if letter == '/' && at(index + 1) == '/' {
            while index < letters.len() && at(index) != '\n' {
                index += 1;
            }
        } else if letter == '/' && at(index + 1) == '*' {
            index += 2;
            while index < letters.len() && (at(index), at(index + 1)) != ('*', '/') {
                index += 1;
            }
            index += 2;
        } else if letter == '"' {
            index += 1;
            while index < letters.len() && at(index) != '"' {
                index += if at(index) == '\\' { 2 } else { 1 };
            }
            index += 1;
        } else if letter == 'r' && (at(index + 1) == '"' || raw_string(&letters, index)) {
            let marks = letters[index + 1..]
                .iter()
                .take_while(|c| **c == '#')
                .count();
            index += marks + 2;
            let ends =
                |from: usize| at(from) == '"' && (1..=marks).all(|mark| at(from + mark) == '#');
            while index < letters.len() && !ends(index) {
                index += 1;
            }
            index += marks + 1;
        } else if letter == '\'' {
            // A character, or a lifetime.
            index += match (at(index + 1), at(index + 2)) {
                ('\\', _) => {
                    let rest = letters[index + 3..].iter();
                    rest.take_while(|c| **c != '\'').count() + 4
                }
                (_, '\'') => 3,
                _ => 1,
            };
        } else if letter.is_alphanumeric() || letter == '_' {
            let from = index;
            while at(index).is_alphanumeric() || at(index) == '_' {
                index += 1;
            }
            words.push(letters[from..index].iter().collect());
        } else if letter == ':' && at(index + 1) == ':' {
            words.push("::".to_owned());
            index += 2;
        } else {
            if !letter.is_whitespace() {
                words.push(letter.to_string());
            }
            index += 1;
        }
    }
    words
}

/// Whether a raw string with `#` marks begins here, and not a raw name.
fn raw_string(letters: &[char], index: usize) -> bool {
    let behind = letters[index + 1..].iter().find(|letter| **letter != '#');
    letters.get(index + 1) == Some(&'#') && behind == Some(&'"')
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn comments_strings_and_characters_are_no_words() {
        let text = "use a::b; // c\n/* d */ let e = \"f\\\"g\"; 'h' '\\'' <'i> r#\"j\"# k";
        assert_eq!(words(text).join(" "), "use a :: b ; let e = ; < i > k");
    }
}
