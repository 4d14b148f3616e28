//! The note about a subvolume that was received in whole or in part.
//!
//! Text of a few lines, so that people can read it.

use super::reader::Position;
use super::target::NewSubvolume;
use butterfs_format::Generation;
use butterfs_format::send_stream::SourceStamp;
use std::fmt;

/// What a note says about the subvolume of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// It is a whole copy.
    Whole(SourceStamp),
    /// It is the beginning of one.
    Partly {
        /// Of what.
        of: NewSubvolume,
        /// How much of the stream was applied.
        at: Position,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(stamp) => line(f, "received", *stamp),
            Self::Partly { of, at } => {
                line(f, "receiving", of.stamp)?;
                if let Some(parent) = of.parent {
                    line(f, "parent", parent)?;
                }
                writeln!(f, "applied {} {}", at.offset, at.digest)
            }
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, word: &str, stamp: SourceStamp) -> fmt::Result {
    let uuid = uuid::Uuid::from_bytes(stamp.uuid);
    writeln!(f, "{word} {uuid} {}", stamp.ctransid)
}

impl Note {
    /// The note about the subvolume `name`, if `text` is one.
    #[must_use]
    pub fn parse(name: &[u8], text: &str) -> Option<Self> {
        let mut of = None;
        let mut parent = None;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["received", uuid, ctransid] => return Some(Self::Whole(stamp(uuid, ctransid)?)),
                ["receiving", uuid, ctransid] => of = Some(stamp(uuid, ctransid)?),
                ["parent", uuid, ctransid] => parent = Some(stamp(uuid, ctransid)?),
                ["applied", offset, digest] => {
                    return Some(Self::Partly {
                        of: NewSubvolume {
                            name: name.to_vec(),
                            stamp: of?,
                            parent,
                        },
                        at: Position {
                            offset: offset.parse().ok()?,
                            digest: digest.parse().ok()?,
                        },
                    });
                }
                _ => return None,
            }
        }
        None
    }
}

fn stamp(uuid: &str, ctransid: &str) -> Option<SourceStamp> {
    Some(SourceStamp {
        uuid: uuid::Uuid::parse_str(uuid).ok()?.into_bytes(),
        ctransid: Generation(ctransid.parse().ok()?),
    })
}
