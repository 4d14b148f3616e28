//! Files that pages and comments name.
//!
//! In the pages and in comments, `store/nodes` stands for
//! crates/store/src/nodes.rs or the directory of that name, and
//! `testkit/tests/model.rs` for a file of the crate. What is named so must be
//! there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Fails if something that is named is not there.
pub fn check() -> Result<(), String> {
    let crates = names_in(Path::new("crates"))?;
    let mut files = Vec::new();
    for folder in ["crates", "benches", "docs", "xtask", "fuzz"] {
        collect(Path::new(folder), &mut files)?;
    }
    for page in names_in(Path::new("."))? {
        if page.ends_with(".md") {
            files.push(PathBuf::from(page));
        }
    }
    let (mut missing, mut count) = (Vec::new(), 0_usize);
    for file in files {
        let text =
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let is_page = file.extension().is_some_and(|end| end == "md");
        for named in named(&text, is_page) {
            let Some((name, rest)) = named.split_once('/') else {
                continue;
            };
            if !crates.contains(name) || rest.is_empty() {
                continue;
            }
            count += 1;
            if !is_there(name, rest) {
                missing.push(format!("{}: `{named}` is not there", file.display()));
            }
        }
    }
    if count < 100 {
        return Err(format!("only {count} names of files were found"));
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(missing.join("\n")),
    }
}

fn names_in(folder: &Path) -> Result<BTreeSet<String>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.collect())
}

/// Sources and pages below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    for name in names_in(folder)? {
        let path = folder.join(&name);
        if path.is_symlink() || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(&path, files)?;
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            files.push(path);
        }
    }
    Ok(())
}

/// What stands between backticks, in a page or in the comments of a source.
fn named(text: &str, is_page: bool) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        if !is_page && !line.starts_with("//") {
            continue;
        }
        for (index, part) in line.split('`').enumerate() {
            let is_path = |letter: char| letter.is_ascii_alphanumeric() || "_/.-".contains(letter);
            if index % 2 == 1 && part.contains('/') && part.chars().all(is_path) {
                found.push(part.to_owned());
            }
        }
    }
    found
}

fn is_there(name: &str, rest: &str) -> bool {
    let own = Path::new("crates").join(name);
    let rest = rest.trim_end_matches('/');
    let source = own.join("src").join(rest);
    own.join(rest).exists() || source.exists() || source.with_extension("rs").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stand_between_backticks() {
        let text =
            "// as in `fs/change`, `a b/c`\nlet x = `fs/other`;\n    /// `store/log` and `x`\n";
        assert_eq!(named(text, false), ["fs/change", "store/log"]);
        assert_eq!(
            named("`fs/change.rs` and `/mnt/x`", true),
            ["fs/change.rs", "/mnt/x"]
        );
    }
}
