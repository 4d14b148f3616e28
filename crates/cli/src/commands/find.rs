//! `butterfs find`.

use super::list::permissions;
use crate::changes::Start;
use crate::dates::date;
use crate::fail::{Done, Failure, fail};
use crate::output;
use crate::place::Place;
use crate::sizes;
use butterfs::{Attributes, Walk, WalkEntry};
use clap::{Args, ValueEnum};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Finds files of a volume that is not mounted; all conditions must hold.
#[derive(Args, Debug)]
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
    start: Start,
    /// VOLUME:/path, one or more; the root without a path.
    #[arg(required = true)]
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    const fn mode(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Link => libc::S_IFLNK,
            Self::CharDevice => libc::S_IFCHR,
            Self::BlockDevice => libc::S_IFBLK,
            Self::Fifo => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
        }
    }
}

#[derive(Clone, Copy, Debug)]
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

impl Find {
    /// Runs it.
    pub fn run(self) -> Done {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let mut out = BufWriter::new(output::own());
        for place in &self.places {
            let volume = self.start.open(place)?;
            let start = volume.resolve(place.path.as_bytes())?;
            let top = place.path.as_bytes();
            let mut missing = true;
            volume.walk::<Failure>(start, &mut |entry| {
                missing = false;
                let path = joined(top, &entry.path);
                if self.matches(&path, &entry.attributes, now) {
                    self.print(&mut out, &path, &entry.attributes)?;
                }
                Ok(match self.is_deep_enough(entry) {
                    true => Walk::Skip,
                    false => Walk::Enter,
                })
            })?;
            if missing {
                return fail(format!("{place}: nothing is there"));
            }
        }
        Ok(out.flush()?)
    }

    fn is_deep_enough(&self, entry: &WalkEntry) -> bool {
        let depth = match entry.path.is_empty() {
            true => 0,
            false => 1 + entry.path.iter().filter(|byte| **byte == b'/').count(),
        };
        self.maxdepth.is_some_and(|most| depth >= most)
    }

    fn matches(&self, path: &[u8], of: &Attributes, now: u64) -> bool {
        const DAY: u64 = 86_400;
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let matches = |pattern: &Option<String>, text: &[u8]| {
            let is_like = |pattern: &String| like(pattern.as_bytes(), text);
            pattern.as_ref().is_none_or(is_like)
        };
        let iname = self
            .iname
            .as_ref()
            .map(|pattern| pattern.to_ascii_lowercase());
        let is_new = |days: u32| {
            let since = now.saturating_sub(u64::from(days) * DAY);
            of.mtime.seconds >= i64::try_from(since).unwrap_or(i64::MAX)
        };
        matches(&self.name, name)
            && matches(&iname, &name.to_ascii_lowercase())
            && matches(&self.path, path)
            && self
                .kind
                .is_none_or(|kind| of.mode & libc::S_IFMT == kind.mode())
            && self.size.is_none_or(|bound| bound.holds(of.size))
            && self.uid.is_none_or(|uid| of.uid == uid)
            && self.gid.is_none_or(|gid| of.gid == gid)
            && self.newer_than.is_none_or(is_new)
    }

    fn print(&self, out: &mut impl Write, path: &[u8], of: &Attributes) -> Done {
        if self.ls {
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
