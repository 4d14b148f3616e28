//! From a volume to an archive.

use super::Create;
use super::archive::{Left, Step, add};
use crate::changes::last_name;
use crate::fail::Done;
use crate::files_bar::{FilesBar, Holes};
use crate::interrupt::Interrupt;
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
                self.write(&mut file)?;
                file.finish()
            }
            None => self.write(&mut output::own()),
        }
    }

    fn write(&self, out: &mut impl Write) -> Done {
        let interrupt = Interrupt::watch()?;
        let mut left = Left::default();
        let mut bar = FilesBar::new(false);
        let done = bar.done();
        let mut archive = Builder::new(BufWriter::with_capacity(1 << 20, out));
        for place in &self.places {
            let volume = self.start.open(place)?;
            let start = volume.resolve(place.path.as_bytes())?;
            let top = last_name(place).unwrap_or_default();
            bar.count_volume(&volume, start, Holes::Copied);
            add(&mut archive, &volume, (start, top), &mut left, &|step| {
                match step {
                    Step::File => done.file(),
                    Step::Data(bytes) => done.data(bytes),
                }
                interrupt.check()
            })?;
        }
        archive.into_inner()?.flush()?;
        bar.end();
        left.say();
        Ok(())
    }
}
