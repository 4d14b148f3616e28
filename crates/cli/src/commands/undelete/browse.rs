//! Looking around in what was deleted, and choosing what comes back.
//!
//! The prompt of `butterfs undelete --interactive`. It reads lines, so that a
//! script can answer it.

use crate::commands::find::like;
use crate::dates::date;
use crate::fail::Done;
use butterfs_rescue::{Deleted, DeletedKind};
use std::collections::BTreeMap;
use std::io::{BufRead, IsTerminal as _, Write as _};

const HELP: &str = "ls [DIRECTORY]   what was deleted there
cd DIRECTORY     go there; .. is the directory above
find PATTERN     names that match: * any text, ? any byte, [a-z] one of these
get NAME         bring a file back, or a directory with all that is below it
get PATTERN      the same with all names here that match
quit";

/// What was found, by place.
struct Found<'f> {
    all: &'f [Deleted],
    /// Numbers in `all`.
    places: BTreeMap<Vec<Vec<u8>>, usize>,
}

/// Asks what to do until the input ends, and gives what was chosen to `bring`.
///
/// # Errors
/// Those of the terminal. What `bring` fails with is told, and the next
/// question follows; the last such error is returned at the end.
pub(super) fn browse(all: &[Deleted], bring: &mut dyn FnMut(&[Deleted]) -> Done) -> Done {
    let places = all.iter().enumerate();
    let found = Found {
        all,
        places: places.map(|(number, one)| (one.place(), number)).collect(),
    };
    let is_terminal = std::io::stdin().is_terminal();
    say!(
        "{} files and directories were found; \"help\" explains.",
        all.len()
    );
    let mut here: Vec<Vec<u8>> = Vec::new();
    let mut outcome = Ok(());
    let mut lines = std::io::stdin().lock();
    loop {
        if is_terminal {
            print!("{}> ", text(&here));
            std::io::stdout().flush()?;
        }
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return outcome;
        }
        let line = line.trim();
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match verb {
            "" => {}
            "quit" | "exit" | "q" => return outcome,
            "ls" => found.list(&absolute(&here, rest))?,
            "cd" => {
                let to = absolute(&here, rest);
                match found.is_directory(&to) {
                    true => here = to,
                    false => note!("{}: no such directory", text(&to)),
                }
            }
            "find" => found.find(&here, rest)?,
            "get" => {
                let chosen = found.chosen(&here, rest);
                if chosen.is_empty() {
                    note!("{rest}: nothing here has this name");
                } else if let Err(error) = bring(&chosen) {
                    note!("{}", error.0);
                    outcome = Err(error);
                }
            }
            "help" | "?" => say!("{HELP}"),
            other => note!("{other}: unknown; \"help\" lists what there is"),
        }
    }
}

fn text(path: &[Vec<u8>]) -> String {
    String::from_utf8_lossy(&[b"/", &path.join(&b'/')[..]].concat()).into_owned()
}

/// A path as it was typed, from `here`.
fn absolute(here: &[Vec<u8>], typed: &str) -> Vec<Vec<u8>> {
    let mut path = match typed.starts_with('/') {
        true => Vec::new(),
        false => here.to_vec(),
    };
    for name in typed.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                path.pop();
            }
            name => path.push(name.as_bytes().to_vec()),
        }
    }
    path
}

impl Found<'_> {
    /// What lies below `directory`, with names from there on.
    fn below<'s>(
        &'s self,
        directory: &'s [Vec<u8>],
    ) -> impl Iterator<Item = (&'s [Vec<u8>], &'s Deleted)> {
        let places = self.places.range(directory.to_vec()..);
        let places = places.take_while(|(path, _)| path.starts_with(directory));
        places.filter_map(|(path, number)| {
            let rest = path
                .get(directory.len()..)
                .filter(|rest| !rest.is_empty())?;
            Some((rest, self.all.get(*number)?))
        })
    }

    fn is_directory(&self, path: &[Vec<u8>]) -> bool {
        let own = self
            .places
            .get(path)
            .and_then(|number| self.all.get(*number));
        path.is_empty()
            || own.is_some_and(|one| one.kind == DeletedKind::Directory)
            || self.below(path).next().is_some()
    }

    fn list(&self, directory: &[Vec<u8>]) -> Done {
        if !self.is_directory(directory) {
            note!("{}: no such directory", text(directory));
            return Ok(());
        }
        let mut last: Option<&Vec<u8>> = None;
        for (path, one) in self.below(directory) {
            let Some((name, deeper)) = path.split_first() else {
                continue;
            };
            if last == Some(name) {
                continue;
            }
            last = Some(name);
            let shown = String::from_utf8_lossy(name);
            if !deeper.is_empty() || one.kind == DeletedKind::Directory {
                say!("{shown}/");
            } else {
                say!("{shown}  {}", facts(one));
            }
        }
        Ok(())
    }

    fn find(&self, directory: &[Vec<u8>], pattern: &str) -> Done {
        for (path, one) in self.below(directory) {
            let name = path.last().map_or(&[][..], Vec::as_slice);
            if like(pattern.as_bytes(), name) {
                let path = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
                say!("{path}  {}", facts(one));
            }
        }
        Ok(())
    }

    /// What a name or a pattern stands for: itself and all that is below it.
    fn chosen(&self, here: &[Vec<u8>], typed: &str) -> Vec<Deleted> {
        if typed.is_empty() {
            return Vec::new();
        }
        let path = absolute(here, typed);
        let exact = self
            .places
            .get(&path)
            .and_then(|number| self.all.get(*number));
        let mut chosen: Vec<Deleted> = exact.cloned().into_iter().collect();
        chosen.extend(self.below(&path).map(|(_, one)| one.clone()));
        if chosen.is_empty()
            && let Some((pattern, directory)) = path.split_last()
        {
            let below = self.below(directory);
            let is_like = |name: &Vec<u8>| like(pattern, name);
            let matching = below.filter(|(path, _)| path.first().is_some_and(is_like));
            chosen.extend(matching.map(|(_, one)| one.clone()));
        }
        chosen
    }
}

fn facts(one: &Deleted) -> String {
    let what = match one.kind {
        DeletedKind::File => format!("{} bytes", one.size),
        kind => kind.name().to_owned(),
    };
    let changed = date(one.mtime.seconds);
    format!("{what}, changed {changed}: {}", one.confidence.name())
}
