//! From a volume to an archive.

use super::Create;
use super::archive::{Left, Step, add};
use crate::changes::last_name;
use crate::fail::{Done, Failure};
use crate::files_bar::{FilesBar, Holes};
use crate::interrupt::Interrupt;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::output;
use crate::whole_file::WholeFile;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use tar::Builder;

impl Create {
    /// Runs it.
    pub(super) fn run(self) -> Done {
        match &self.file {
            Some(path) => {
                let mut file = WholeFile::create(path)?;
                let left_out = self.write(&mut file)?;
                file.finish()?;
                left_out.ended("in the archive")
            }
            None => self.write(&mut output::own())?.ended("in the archive"),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<LeftOut, Failure> {
        let interrupt = Interrupt::watch()?;
        let mut left = Left::default();
        let mut bar = FilesBar::new(false);
        let left_out = LeftOut::new(OnUndone::GoesOn, &bar);
        let done = bar.done();
        let mut archive = Builder::new(BufWriter::with_capacity(1 << 20, out));
        for place in &self.places {
            let volume = self.start.open(place)?;
            let found = volume.resolve(place.path.as_bytes());
            let Some(start) = left_out.entry(place, found.map_err(Undone::from))? else {
                continue;
            };
            let top = last_name(place).unwrap_or_default();
            bar.count_volume(&volume, start, Holes::Copied);
            let (left, watch) = ((&mut left, &left_out), &|step| {
                match step {
                    Step::File => done.file(),
                    Step::Data(bytes) => done.data(bytes),
                }
                interrupt.check()
            });
            add(&mut archive, &volume, (start, top), left, watch)?;
        }
        archive.into_inner()?.flush()?;
        bar.end();
        left.say();
        Ok(left_out)
    }
}
