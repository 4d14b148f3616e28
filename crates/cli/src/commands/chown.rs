//! `butterfs chown`.

use crate::changes::Start;
use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::on_mount::{Ending, OnFiles, user_database};
use crate::place::Place;
use crate::service::Effect;
use butterfs::{Privileges, SetAttributes, Walk, walk};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Changes owners, in a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  butterfs chown 1000:1000 disk.img:/home/ann
  butterfs chown -R www-data: disk.img:/srv/www

Names are those of the volume's own /etc/passwd and /etc/group; on a mount, those of the
machine's."
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
    #[serde(skip)]
    start: Start,
    /// USER, USER:GROUP, :GROUP, or USER: for the user and their group.
    owner: String,
    /// VOLUME:/path or paths on a mount, one or more, in one volume.
    #[arg(required = true)]
    places: Vec<Place>,
}

/// Who shall own it; `None` leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NewOwner {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl OnFiles for Chown {
    const TAG: &'static str = "Chown";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let ending = match self.no_dereference {
            true => Ending::Entry,
            false => Ending::Followed,
        };
        let places = self.places.iter_mut();
        places.map(|place| (place, ending)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    /// Names become numbers.
    fn prepare(&mut self) -> Done {
        let NewOwner { uid, gid } = owner(&self.owner, &user_database)?;
        let shown = |number: Option<u32>| number.map(|number| number.to_string());
        self.owner = match (shown(uid), shown(gid)) {
            (Some(uid), None) => uid,
            (uid, gid) => format!("{}:{}", uid.unwrap_or_default(), gid.unwrap_or_default()),
        };
        Ok(())
    }

    fn here(self) -> Done {
        let work = |volume: &_| self.on(&Ground::opened(volume));
        self.start.change(&self.places, work)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let owner = owner(&self.owner, &|file| match ground.is_mounted() {
            true => Vec::new(),
            // A missing file names nobody.
            false => ground.volume.read_file(file).unwrap_or_default(),
        })?;
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for place in &self.places {
            self.change(ground, place, owner, &left_out)?;
        }
        left_out.ended("changed")
    }
}

impl Chown {
    fn change(
        &self,
        ground: &Ground<'_>,
        place: &Place,
        owner: NewOwner,
        left_out: &LeftOut,
    ) -> Done {
        let found = match self.no_dereference {
            true => ground.find(place),
            false => ground.followed(place),
        };
        let Some(start) = left_out.entry(place, found)? else {
            return Ok(());
        };
        walk::<Failure>(
            ground.calls,
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
                let changed = ground.calls.set_attributes(entry.attributes.id, &set);
                let changed = changed.map_err(Undone::from);
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
