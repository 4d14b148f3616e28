//! Survey, restore, undelete and the chunks of a volume whose bytes may say anything.
//!
//! Each ends, with files or with an error of one line. None panics.

use butterfs_device::BlockDevice;
use butterfs_rescue::{
    Patient, PatientOptions, RescueError, RestoreOptions, ScanScope, Silent, SurveyOptions,
    TarTarget, UndeleteOptions, recover_chunks, restore, survey, undelete,
};
use std::io::{self, Write};
use std::sync::Arc;

/// Bytes of an archive that are taken: a file may say that it has any size.
const ARCHIVE_MAX: u64 = 256 << 20;

/// Takes bytes and drops them, up to a bound.
struct Counting(u64);

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        match self.0 > ARCHIVE_MAX {
            true => Err(io::Error::from(io::ErrorKind::StorageFull)),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn said<T>(result: Result<T, RescueError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            None
        }
    }
}

/// Runs all of them. Returns how many files a restore found.
pub fn run(devices: Vec<Arc<dyn BlockDevice>>, how: u8) -> u64 {
    let options = PatientOptions {
        threads: 1,
        memory_max: 64 << 20,
        superblock: (how % 8 == 7).then_some(1),
        ..PatientOptions::default()
    };
    let Some(mut patient) = said(Patient::open(devices, options)) else {
        return 0;
    };
    let scope = match how % 2 {
        0 => ScanScope::Nodes,
        _ => ScanScope::Everything,
    };
    let look = SurveyOptions {
        scope,
        ..SurveyOptions::default()
    };
    said(survey(&mut patient, &look, &Silent));
    let options = RestoreOptions {
        snapshots: true,
        xattrs: true,
        attributes: true,
        symlinks: true,
        ..RestoreOptions::default()
    };
    let mut target = TarTarget::new(Counting(0));
    let restored = restore(&mut patient, &mut target, &options, &Silent, &mut |_, _| {});
    let restored = said(restored);
    let options = UndeleteOptions {
        scope,
        versions: true,
        ..UndeleteOptions::default()
    };
    said(undelete(&mut patient, &options, &Silent));
    said(recover_chunks(&patient));
    restored.map_or(0, |restored| restored.files)
}
