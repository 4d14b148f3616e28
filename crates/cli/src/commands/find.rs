//! `butterfs find`.

use super::list::permissions;
use crate::changes::Start;
use crate::dates::date;
use crate::fail::{Done, fail};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::output;
use crate::place::Place;
use crate::service::Effect;
use crate::sizes;
use butterfs::{Attributes, FileType, InodeId};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Finds files, in a volume or on a mount; all conditions must hold.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs find disk.img:/etc -name '*.conf' -type f
  butterfs find disk.img --size +1m --newer-than 7

Options may have one minus, as those of find(1) have.")]
pub struct Find {
    /// The last name matches: * any text, ? any byte, [a-z] one of these.
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// As --name, ignoring case.
    #[arg(long, value_name = "PATTERN")]
    iname: Option<String>,
    /// The whole path from the root matches.
    #[arg(long, value_name = "PATTERN")]
    path: Option<String>,
    /// Of this type.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Kind>,
    /// Of this size; +SIZE: greater, -SIZE: smaller.
    #[arg(long, value_name = "[+-]SIZE", allow_hyphen_values = true, value_parser = bound)]
    size: Option<Bound>,
    /// Of the user of this number.
    #[arg(long)]
    uid: Option<u32>,
    /// Of the group of this number.
    #[arg(long)]
    gid: Option<u32>,
    /// Changed within so many days.
    #[arg(long, value_name = "DAYS")]
    newer_than: Option<u32>,
    /// Go no deeper.
    #[arg(long, value_name = "N")]
    maxdepth: Option<usize>,
    /// Print type, permissions, owner, size and time too.
    #[arg(long)]
    ls: bool,
    /// End each path with a zero byte.
    #[arg(short = '0', long, conflicts_with = "ls")]
    print0: bool,
    #[command(flatten)]
    #[serde(skip)]
    start: Start,
    /// VOLUME:/path, one or more, or paths on a mount; the root without a path.
    #[arg(required = true)]
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize, ValueEnum)]
enum Kind {
    #[value(name = "f")]
    File,
    #[value(name = "d")]
    Directory,
    #[value(name = "l")]
    Link,
    #[value(name = "c")]
    CharDevice,
    #[value(name = "b")]
    BlockDevice,
    #[value(name = "p")]
    Fifo,
    #[value(name = "s")]
    Socket,
}

impl Kind {
    const fn file_type(self) -> FileType {
        match self {
            Self::File => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Link => FileType::Symlink,
            Self::CharDevice => FileType::CharDevice,
            Self::BlockDevice => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Bound {
    Is(u64),
    Above(u64),
    Below(u64),
}

fn bound(text: &str) -> Result<Bound, String> {
    Ok(match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(size), _) => Bound::Above(sizes::parse(size)?),
        (None, Some(size)) => Bound::Below(sizes::parse(size)?),
        (None, None) => Bound::Is(sizes::parse(text)?),
    })
}

impl Bound {
    const fn holds(self, size: u64) -> bool {
        match self {
            Self::Is(wanted) => size == wanted,
            Self::Above(limit) => size > limit,
            Self::Below(limit) => size < limit,
        }
    }
}

impl OnFiles for Find {
    const TAG: &'static str = "Find";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let places = self.places.iter_mut();
        places.map(|place| (place, Ending::Entry)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn here(self) -> Done {
        let mut out = BufWriter::new(output::standard());
        for place in &self.places {
            let volume = self.start.open(place)?;
            let ground = Ground::opened(&volume);
            let left_out = LeftOut::new(ground.when_unreadable(), &FilesBar::new(true));
            self.search(&ground, place, (&mut out, &left_out))?;
        }
        Ok(out.flush()?)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let mut out = BufWriter::new(output::standard());
        let left_out = LeftOut::new(ground.when_unreadable(), &FilesBar::new(true));
        for place in &self.places {
            self.search(ground, place, (&mut out, &left_out))?;
        }
        out.flush()?;
        left_out.ended("searched")
    }
}

/// What is still to be looked at.
struct Waiting {
    /// Path below the start.
    path: Vec<u8>,
    id: InodeId,
    kind: FileType,
    depth: usize,
}

impl Find {
    fn search(
        &self,
        ground: &Ground<'_>,
        place: &Place,
        (out, left_out): (&mut impl Write, &LeftOut),
    ) -> Done {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let top = place.path.as_bytes();
        let unread = |path: &[u8], error| {
            let error = butterfs::Error::at(path, error);
            super::du::unread(ground, left_out, (place, error))
        };
        let start = match ground.find(place) {
            Err(undone) if ground.is_mounted() => return left_out.undone(undone.at(place)),
            found => found.map_err(Undone::into_failure)?,
        };
        let mode = ground.calls.attributes(start)?.mode;
        let mut waiting = vec![Waiting {
            path: Vec::new(),
            id: start,
            kind: kind_of(mode),
            depth: 0,
        }];
        // A directory has one name; one that is met again would be walked
        // without end.
        let mut entered = HashSet::new();
        while let Some(Waiting {
            path: below,
            id,
            kind,
            depth,
        }) = waiting.pop()
        {
            let path = joined(top, &below);
            if self.matches(&path, kind) {
                let of = match self.needs_attributes() {
                    true => match ground.calls.attributes(id) {
                        Ok(of) => Some(of),
                        Err(error) => {
                            unread(&below, error)?;
                            continue;
                        }
                    },
                    false => None,
                };
                if of
                    .as_ref()
                    .is_none_or(|of| self.matches_attributes(of, now))
                {
                    self.print(out, &path, of.as_ref())?;
                }
            }
            let is_deep = self.maxdepth.is_some_and(|most| depth >= most);
            if kind != FileType::Directory || is_deep {
                continue;
            }
            if !entered.insert(id) && !butterfs::is_absent_subvolume(id) {
                return fail(format!(
                    "{place}: a directory has two names; check the volume"
                ));
            }
            let mut children = Vec::new();
            if let Err(error) = ground.calls.list_to(id, &mut children) {
                unread(&below, error)?;
            }
            waiting.extend(children.into_iter().rev().map(|child| Waiting {
                path: match below.is_empty() {
                    true => child.name,
                    false => [&below[..], b"/", &child.name].concat(),
                },
                id: child.target.inode,
                kind: child.target.kind,
                depth: depth + 1,
            }));
        }
        Ok(())
    }

    /// Whether names and kinds of files do not suffice.
    const fn needs_attributes(&self) -> bool {
        self.ls
            || self.size.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || self.newer_than.is_some()
    }

    fn matches(&self, path: &[u8], kind: FileType) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let matches = |pattern: &Option<String>, text: &[u8]| {
            let is_like = |pattern: &String| like(pattern.as_bytes(), text);
            pattern.as_ref().is_none_or(is_like)
        };
        let is_named = || match &self.iname {
            None => true,
            Some(pattern) => {
                let pattern = pattern.to_ascii_lowercase();
                like(pattern.as_bytes(), &name.to_ascii_lowercase())
            }
        };
        self.kind.is_none_or(|wanted| kind == wanted.file_type())
            && matches(&self.name, name)
            && is_named()
            && matches(&self.path, path)
    }

    fn matches_attributes(&self, of: &Attributes, now: u64) -> bool {
        const DAY: u64 = 86_400;
        let is_new = |days: u32| {
            let since = now.saturating_sub(u64::from(days) * DAY);
            of.mtime.seconds >= i64::try_from(since).unwrap_or(i64::MAX)
        };
        self.size.is_none_or(|bound| bound.holds(of.size))
            && self.uid.is_none_or(|uid| of.uid == uid)
            && self.gid.is_none_or(|gid| of.gid == gid)
            && self.newer_than.is_none_or(is_new)
    }

    fn print(&self, out: &mut impl Write, path: &[u8], of: Option<&Attributes>) -> Done {
        if let Some(of) = of.filter(|_| self.ls) {
            write!(
                out,
                "{} {:>5} {:>5} {:>10} {} ",
                permissions(of.mode),
                of.uid,
                of.gid,
                of.size,
                date(of.mtime.seconds)
            )?;
        }
        out.write_all(path)?;
        Ok(out.write_all(if self.print0 { b"\0" } else { b"\n" })?)
    }
}

/// The kind that a mode says.
const fn kind_of(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        libc::S_IFIFO => FileType::Fifo,
        libc::S_IFSOCK => FileType::Socket,
        _ => FileType::Regular,
    }
}

/// A path below another.
fn joined(top: &[u8], below: &[u8]) -> Vec<u8> {
    if below.is_empty() {
        return top.to_vec();
    }
    let slash: &[u8] = if top.ends_with(b"/") { b"" } else { b"/" };
    [top, slash, below].concat()
}

/// Whether `text` matches a pattern of the shell. The number of steps is
/// bounded by the product of both lengths, because only the last star is ever
/// tried again.
pub fn like(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while in_text < text.len() {
        let next = match pattern.get(at) {
            Some(b'*') => {
                back = Some((at + 1, in_text));
                at += 1;
                continue;
            }
            Some(_) => one(&pattern[at..], text[in_text]),
            None => None,
        };
        if let Some(length) = next {
            at += length;
            in_text += 1;
        } else if let Some((after, from)) = back {
            back = Some((after, from + 1));
            at = after;
            in_text = from + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Bytes of the pattern that match one byte of the text.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => match set(rest, byte) {
            Some((length, matches)) => matches.then_some(length + 1),
            // A `[` without its `]` stands for itself.
            None => (byte == b'[').then_some(1),
        },
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// The set after a `[`: its length with the `]`, and whether `byte` is in it.
fn set(rest: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let begin = usize::from(negated);
    let mut at = begin;
    let mut found = false;
    loop {
        let low = *rest.get(at)?;
        if low == b']' && at > begin {
            return Some((at + 1, found != negated));
        }
        let is_range = rest.get(at + 1) == Some(&b'-') && rest.get(at + 2) != Some(&b']');
        let high = if is_range { *rest.get(at + 2)? } else { low };
        found |= (low..=high).contains(&byte);
        at += if is_range { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_the_shell() {
        let yes = [
            ("*.conf", "a.conf"),
            ("*", ""),
            ("a*b*c", "aXbYbZc"),
            ("?at", "cat"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("a\\*", "a*"),
            ("[", "["),
        ];
        for (pattern, text) in yes {
            assert!(
                like(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        let no = [
            ("*.conf", "a.conf~"),
            ("?", ""),
            ("a*b", "abc"),
            ("[a-c]x", "dx"),
            ("[!a]", "a"),
            ("a\\*", "ab"),
        ];
        for (pattern, text) in no {
            assert!(
                !like(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        // Not in exponential time.
        let pattern = [b"a*".repeat(50), b"c".to_vec()].concat();
        assert!(!like(&pattern, &b"a".repeat(5000)));
    }
}
