//! `butterfs chown`.

use crate::changes::{Start, followed};
use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::place::Place;
use butterfs::{FsError, Privileges, SetAttributes, Volume, Walk};
use clap::Args;
use std::os::unix::ffi::OsStrExt;

/// Changes owners in a volume that is not mounted.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  butterfs chown 1000:1000 disk.img:/home/ann
  butterfs chown -R www-data: disk.img:/srv/www

Names are those of the volume's own /etc/passwd and /etc/group."
)]
pub struct Chown {
    /// All below directories too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Links themselves, not what they lead to.
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    start: Start,
    /// USER, USER:GROUP, :GROUP, or USER: for the user and their group.
    owner: String,
    /// VOLUME:/path, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

/// Who shall own it; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NewOwner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Chown {
    /// Runs it.
    pub fn run(self) -> Done {
        self.start.change(&self.places, |volume| {
            let owner = owner(&self.owner, &|file| {
                // A missing file names nobody.
                volume.read_file(file).unwrap_or_default()
            })?;
            let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
            for place in &self.places {
                self.change(volume, place, owner, &left_out)?;
            }
            left_out.ended("changed")
        })
    }

    fn change(&self, volume: &Volume, place: &Place, owner: NewOwner, left_out: &LeftOut) -> Done {
        let found = match self.no_dereference {
            true => volume.resolve(place.path.as_bytes()).map_err(Undone::from),
            false => followed(volume, place).map_err(Undone::Entry),
        };
        let Some(start) = left_out.entry(place, found)? else {
            return Ok(());
        };
        volume.walk_readable::<Failure>(
            start,
            &mut |entry| {
                let is_link = entry.attributes.mode & libc::S_IFMT == libc::S_IFLNK;
                let set = SetAttributes {
                    uid: owner.uid,
                    gid: owner.gid,
                    // The new owner of a program must not get the rights of the
                    // old one.
                    privileges: match is_link {
                        true => Privileges::Keep,
                        false => Privileges::Drop,
                    },
                    ..SetAttributes::default()
                };
                let change = || -> Result<(), FsError> {
                    let inode = volume.files().inode(entry.attributes.id)?;
                    volume.files().set_attributes(&inode, &set)
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

/// What chown(1) understands. `read` returns the files of the user database.
fn owner(text: &str, read: &dyn Fn(&[u8]) -> Vec<u8>) -> Result<NewOwner, Failure> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let mut wanted = NewOwner::default();
    let mut own_group = None;
    if !user.is_empty() {
        let line = line_of(&read(b"/etc/passwd"), user);
        wanted.uid = Some(number(user, line.as_ref(), "user")?);
        own_group = line.and_then(|line| line.get(3)?.parse().ok());
    }
    match group {
        None => {}
        Some("") if user.is_empty() => return fail("`:` names nobody; write USER or USER:GROUP"),
        Some("") => match own_group {
            Some(gid) => wanted.gid = Some(gid),
            None => {
                return fail(format!(
                    "the volume's /etc/passwd has no group for {user}; write USER:GROUP"
                ));
            }
        },
        Some(group) => {
            let line = line_of(&read(b"/etc/group"), group);
            wanted.gid = Some(number(group, line.as_ref(), "group")?);
        }
    }
    if wanted == NewOwner::default() {
        return fail("no owner was given; write USER or USER:GROUP");
    }
    Ok(wanted)
}

/// The fields of the line of a name.
fn line_of(database: &[u8], name: &str) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(database);
    text.lines()
        .map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>())
        .find(|fields| fields.first().is_some_and(|first| first == name))
}

fn number(name: &str, line: Option<&Vec<String>>, what: &str) -> Result<u32, Failure> {
    let of_line = line.and_then(|line| line.get(2)?.parse().ok());
    // The greatest number means no owner.
    let number = of_line.or_else(|| name.parse().ok());
    number.filter(|number| *number != u32::MAX).ok_or_else(|| {
        Failure(format!(
            "{name} is no {what} of the volume; write a number, or a name from its /etc"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names_of_the_volume() {
        let read = |file: &[u8]| match file {
            b"/etc/passwd" => b"root:x:0:0::/root:/bin/sh\nann:x:1000:100::/home/ann:\n".to_vec(),
            _ => b"root:x:0:\nusers:x:100:ann\n".to_vec(),
        };
        let parse = |text: &str| owner(text, &read).map(|owner| (owner.uid, owner.gid)).ok();
        assert_eq!(parse("ann"), Some((Some(1000), None)));
        assert_eq!(parse("ann:"), Some((Some(1000), Some(100))));
        assert_eq!(parse("5:users"), Some((Some(5), Some(100))));
        assert_eq!(parse(":0"), Some((None, Some(0))));
        for bad in ["", ":", "bob", "ann:wheel", "4294967295", "7:"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
