//! `butterfs chmod`, and modes as chmod(1) takes them.

use crate::changes::Start;
use crate::fail::{Done, Failure};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::place::Place;
use crate::service::Effect;
use butterfs::{FsError, SetAttributes, Walk, walk};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Changes permissions, in a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs chmod 600 disk.img:/etc/shadow
  butterfs chmod -R u=rwX,go=rX disk.img:/srv")]
pub struct Chmod {
    /// All below directories too; links are left alone.
    #[arg(short = 'R', long)]
    recursive: bool,
    #[command(flatten)]
    #[serde(skip)]
    start: Start,
    /// Octal, or changes such as u+x,go-w.
    #[arg(allow_hyphen_values = true)]
    mode: ModeChange,
    /// VOLUME:/path or paths on a mount, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl OnFiles for Chmod {
    const TAG: &'static str = "Chmod";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let places = self.places.iter_mut();
        places.map(|place| (place, Ending::Followed)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    fn here(self) -> Done {
        let work = |volume: &_| self.on(&Ground::opened(volume));
        self.start.change(&self.places, work)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for place in &self.places {
            self.change(ground, place, &left_out)?;
        }
        left_out.ended("changed")
    }
}

impl Chmod {
    fn change(&self, ground: &Ground<'_>, place: &Place, left_out: &LeftOut) -> Done {
        let Some(start) = left_out.entry(place, ground.followed(place))? else {
            return Ok(());
        };
        walk::<Failure>(
            ground.calls,
            start,
            &mut |entry| {
                let of = &entry.attributes;
                let change = || -> Result<(), FsError> {
                    if of.mode & libc::S_IFMT == libc::S_IFLNK {
                        return Ok(());
                    }
                    let set = SetAttributes {
                        mode: Some(self.mode.applied_to(of.mode)),
                        ..SetAttributes::default()
                    };
                    ground.calls.set_attributes(of.id, &set)
                };
                let changed = change().map_err(Undone::from);
                left_out.entry(place.below(&entry.path), changed)?;
                Ok(match self.recursive {
                    true => Walk::Enter,
                    false => Walk::Skip,
                })
            },
            &mut |error| left_out.undone(Undone::from(error).at(place)),
        )
    }
}

/// A change of permissions.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum ModeChange {
    /// These and no others.
    Octal(u32),
    /// One after the other.
    Steps(Vec<Step>),
}

/// `WHO OPERATOR PERMISSIONS`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Bits of the classes that it is for: 0o700, 0o070, 0o007.
    who: u32,
    /// Bits that a step does not give or take: the file mode mask, if it names
    /// no class.
    masked: u32,
    operator: Operator,
    what: What,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
enum What {
    /// Read, write, execute as 4, 2, 1.
    Bits {
        bits: u32,
        /// Execute only for directories, and for files that somebody may
        /// execute.
        conditional: bool,
        set_id: bool,
        sticky: bool,
    },
    /// The permissions of this class: 0o700, 0o070 or 0o007.
    Copy(u32),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no mode; write for example 644 or u+x,go-w");
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u32::from_str_radix(text, 8).map_err(|_| bad())?;
            return if bits <= 0o7777 {
                Ok(Self::Octal(bits))
            } else {
                Err(bad())
            };
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps).ok_or_else(bad)?;
        }
        Ok(Self::Steps(steps))
    }
}

fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let operator_at = clause.find(['+', '-', '='])?;
    let (who, mut rest) = clause.split_at(operator_at);
    let who = who
        .chars()
        .try_fold(0, |bits, letter| Some(bits | class(letter)?))?;
    let (who, masked) = match who {
        0 => (0o777, file_mode_mask()),
        who => (who, 0),
    };
    while !rest.is_empty() {
        let operator = match rest.as_bytes()[0] {
            b'+' => Operator::Add,
            b'-' => Operator::Remove,
            b'=' => Operator::Set,
            _ => return None,
        };
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let (letters, after) = rest.split_at(end);
        rest = after;
        let what = match letters {
            "u" | "g" | "o" => What::Copy(class(letters.chars().next()?)?),
            _ => permissions(letters)?,
        };
        steps.push(Step {
            who,
            masked,
            operator,
            what,
        });
    }
    Some(())
}

/// The file mode mask of this process.
fn file_mode_mask() -> u32 {
    // It can only be read by setting it.
    let mask = rustix::process::umask(rustix::fs::Mode::RWXU);
    rustix::process::umask(mask);
    mask.bits()
}

const fn class(letter: char) -> Option<u32> {
    Some(match letter {
        'u' => 0o700,
        'g' => 0o070,
        'o' => 0o007,
        'a' => 0o777,
        _ => return None,
    })
}

fn permissions(letters: &str) -> Option<What> {
    let (mut bits, mut conditional, mut set_id, mut sticky) = (0, false, false, false);
    for letter in letters.chars() {
        match letter {
            'r' => bits |= 4,
            'w' => bits |= 2,
            'x' => bits |= 1,
            'X' => conditional = true,
            's' => set_id = true,
            't' => sticky = true,
            _ => return None,
        }
    }
    Some(What::Bits {
        bits,
        conditional,
        set_id,
        sticky,
    })
}

impl ModeChange {
    /// The permissions of a file with this type and these permissions after the
    /// change.
    pub fn applied_to(&self, mode: u32) -> u32 {
        let kind = mode & libc::S_IFMT;
        match self {
            Self::Octal(bits) => kind | bits,
            Self::Steps(steps) => steps.iter().fold(mode, |mode, step| step.apply(mode)),
        }
    }
}

impl Step {
    fn apply(self, mode: u32) -> u32 {
        let is_directory = mode & libc::S_IFMT == libc::S_IFDIR;
        let mut special = 0;
        let bits = match self.what {
            What::Copy(of) => {
                let shift = of.trailing_zeros();
                (mode >> shift) & 7
            }
            What::Bits {
                bits: given,
                conditional,
                set_id,
                sticky,
            } => {
                if set_id && self.who & 0o700 != 0 {
                    special |= 0o4000;
                }
                if set_id && self.who & 0o070 != 0 {
                    special |= 0o2000;
                }
                if sticky {
                    special |= 0o1000;
                }
                let may_execute = is_directory || mode & 0o111 != 0;
                given | u32::from(conditional && may_execute)
            }
        };
        let spread = (bits | bits << 3 | bits << 6) & self.who & !self.masked | special;
        match self.operator {
            Operator::Add => mode | spread,
            Operator::Remove => mode & !spread,
            Operator::Set => {
                // A directory keeps its set-id bits unless the mode names them.
                let mut cleared = self.who;
                if !is_directory {
                    cleared |= if self.who & 0o700 != 0 { 0o4000 } else { 0 };
                    cleared |= if self.who & 0o070 != 0 { 0o2000 } else { 0 };
                }
                (mode & !cleared) | spread
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(change: &str, mode: u32) -> u32 {
        change.parse::<ModeChange>().unwrap().applied_to(mode)
    }

    #[test]
    fn modes_change_as_with_chmod() {
        let (file, directory) = (libc::S_IFREG, libc::S_IFDIR);
        assert_eq!(after("640", file | 0o4755), file | 0o640);
        assert_eq!(after("u+x,go-w", file | 0o666), file | 0o744);
        assert_eq!(after("a=rX", file | 0o600), file | 0o444);
        assert_eq!(after("a=rX", file | 0o700), file | 0o555);
        assert_eq!(after("u=rwX,go=rX", directory | 0o2700), directory | 0o2755);
        assert_eq!(after("g=u", file | 0o640), file | 0o660);
        assert_eq!(after("+t", directory | 0o777), directory | 0o1777);
        assert_eq!(after("u+s", file | 0o755), file | 0o4755);
        assert_eq!(after("ug-s,o=", file | 0o6755), file | 0o750);
        assert_eq!(after("u=", file | 0o4755), file | 0o055);
        let masked = 0o222 & !file_mode_mask();
        assert_eq!(after("+w", file | 0o444), file | 0o444 | masked);
        assert_eq!(after("=w", file | 0o666), file | masked);
        assert_eq!(after("a+w", file | 0o444), file | 0o666);
        for bad in ["", "8", "77777", "u+q", "z+x", "rw"] {
            assert!(bad.parse::<ModeChange>().is_err(), "{bad}");
        }
    }
}
