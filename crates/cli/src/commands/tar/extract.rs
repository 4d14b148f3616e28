//! From an archive into a volume, or into a mount.

use super::Extract;
use super::fill::Work;
use super::sent::{Order, send};
use crate::changes::own;
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::interrupt::Interrupt;
use crate::left_out::Undone;
use crate::on_mount::{self, Ending};
use butterfs_admin::archive::{self, ArchiveError};
use std::io::{self, Read};

/// What went wrong while an archive was read.
enum Stopped {
    Archive(ArchiveError),
    Other(Failure),
}

impl From<ArchiveError> for Stopped {
    fn from(error: ArchiveError) -> Self {
        Self::Archive(error)
    }
}

impl Extract {
    /// Runs it.
    pub(super) fn run(self) -> Done {
        let mut place = self.place.clone();
        let found = match self.start.is_plain() {
            true => on_mount::find(vec![(&mut place, Ending::Followed)])?,
            false => None,
        };
        let places = [self.place.clone()];
        let mut bar = FilesBar::new(false);
        let name = match &self.file {
            Some(path) => path.display().to_string(),
            None => "standard input".to_owned(),
        };
        let input: Box<dyn Read> = match &self.file {
            Some(path) => {
                let file = archive::open(path).context(&name)?;
                let meta = file.metadata().context(&name)?;
                if meta.is_file() {
                    bar.expect_bytes(meta.len());
                }
                Box::new(file)
            }
            None => Box::new(io::stdin().lock()),
        };
        let done = bar.done();
        let input = archive::decompressed(done.reading(input)).context(&name)?;
        if let Some(found) = found {
            let order = Order::new(place, self.no_owner);
            let line = bar.line();
            let extracted = send((&name, input), (&order, found), (&line, &|| done.file()));
            bar.end();
            return extracted;
        }
        self.start.change(&places, |volume| {
            let ground = Ground::opened(volume);
            let Some(root) = ground.directory(&self.place)? else {
                return fail(format!("{} is no directory", self.place));
            };
            let place = (root, self.place.path.as_encoded_bytes());
            let work = Work::new(ground, place, self.no_owner.then(own));
            let mut work = work.watched(Interrupt::watch()?, &bar);
            let read = archive::read(input, &mut |found, content| {
                done.file();
                let member = match found {
                    Ok(member) => member,
                    Err(error) => {
                        let undone = Undone::Entry(error.into());
                        return work.left_out.undone(undone).map_err(Stopped::Other);
                    }
                };
                work.take(member, content).map_err(Stopped::Other)
            });
            bar.end();
            let read = read.map_err(|stopped| match stopped {
                Stopped::Archive(error) => Failure(format!("{name}: {error}")),
                Stopped::Other(failure) => failure,
            });
            work.ended(read)
        })
    }
}
