//! `butterfs ln`.

use crate::changes::{Start, directory, last_name, name_of, own, verify_is_name_of_file};
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use butterfs::{FsError, NewInode, Volume};
use clap::Args;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Gives a file another name, or makes a symbolic link, in a volume that is
/// not mounted.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs ln disk.img:/bin/gzip disk.img:/bin/gunzip
  butterfs ln -s ../run/resolv.conf disk.img:/etc/resolv.conf")]
pub struct Ln {
    /// Make a symbolic link; the target is a text and need not exist.
    #[arg(short, long)]
    symbolic: bool,
    /// Replace a file or link that has the name. A directory is never replaced:
    /// the link is made in it.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    start: Start,
    /// What it leads to: VOLUME:/path, or with -s any text.
    target: OsString,
    /// VOLUME:/path of the new name, or the directory for it. A link to a
    /// directory counts as one.
    link: Place,
}

impl Ln {
    /// Runs it.
    pub fn run(self) -> Done {
        if self.symbolic {
            let places = [self.link.clone()];
            return self.start.change(&places, |volume| self.symlink(volume));
        }
        let Some(target) = Place::parse(&self.target) else {
            return fail(format!(
                "{} is no VOLUME:/path; -s makes a symbolic link to any text",
                self.target.display()
            ));
        };
        let places = [target, self.link.clone()];
        self.start
            .change(&places, |volume| self.hard(volume, &places[0]))
    }

    fn symlink(&self, volume: &Volume) -> Done {
        let text = Place {
            volume: self.link.volume.clone(),
            path: self.target.clone(),
        };
        let (parent, name) = self.name(volume, &text)?;
        let new = NewInode::symlink(self.target.as_bytes(), own());
        let files = volume.files();
        files
            .create(parent, name.as_bytes(), &new)
            .context(&self.link)?;
        Ok(())
    }

    fn hard(&self, volume: &Volume, target: &Place) -> Done {
        let id = volume.resolve(target.path.as_bytes())?;
        let (parent, name) = self.name(volume, target)?;
        let files = volume.files();
        files.link(id, parent, name.as_bytes()).context(&self.link)
    }

    /// Directory and name of the link. With --force, removes what has the name.
    fn name(
        &self,
        volume: &Volume,
        target: &Place,
    ) -> Result<(butterfs::InodeId, OsString), crate::fail::Failure> {
        let (parent, name) = match directory(volume, &self.link)? {
            Some(directory) => (directory, last_name(target)?),
            None => {
                verify_is_name_of_file(&self.link)?;
                name_of(volume, &self.link)?
            }
        };
        let name = OsStr::from_bytes(name).to_owned();
        if self.force {
            match volume.files().unlink(parent, name.as_bytes()) {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => return Err(error).context(&self.link),
            }
        }
        Ok((parent, name))
    }
}
