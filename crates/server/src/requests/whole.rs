//! Requests about the whole file system that other file systems answer too:
//! FITRIM and FS_IOC_SHUTDOWN.
//!
//! Source: the kernel's interface header linux/fs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::callers_memory::read_caller;
use super::server::Server;
use butterfs::Trim;
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};
use std::sync::atomic::Ordering;

const FITRIM: u32 = 0xc018_5879;
/// Its number says that only the answer is a word, but the argument is a word
/// too.
const SHUTDOWN: u32 = 0x8004_587d;
/// Bytes of `struct fstrim_range`.
const TRIM_SIZE: usize = 24;

/// What is saved before nothing more is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    /// Everything.
    All,
    /// What is in the trees. Data that wait in memory are lost.
    Trees,
    /// Nothing: as if the power went.
    Nothing,
}

impl Saved {
    const fn of(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::All),
            1 => Some(Self::Trees),
            2 => Some(Self::Nothing),
            _ => None,
        }
    }
}

impl Server {
    /// Serves a request about the whole file system; `None` when it is none.
    pub(super) fn control_whole(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let done = match request.command {
            FITRIM => self.trim(context, request.data, output),
            SHUTDOWN => self.shut_down_as(context, request, output),
            _ => return None,
        };
        Some(done.map(|filled| IoctlResult { value: 0, filled }))
    }

    fn trim(&self, context: &Context<'_>, data: &[u8], output: &mut [u8]) -> Result<usize, Errno> {
        self.check_privileged(context)?;
        let data = Bytes(data);
        let (start, length, length_min) = (data.u64(0)?, data.u64(8)?, data.u64(16)?);
        // As in the kernel: the greatest length stands for all that follows, and
        // no range goes beyond the greatest address.
        let end = match length {
            u64::MAX => Some(u64::MAX),
            length => start.checked_add(length),
        };
        let end = end.filter(|_| start != u64::MAX && length >= u64::from(self.sector));
        let wanted = Trim {
            window: start..end.ok_or(Errno::EINVAL)?,
            length_min: length_min.max(self.sector.into()),
        };
        let trimmed = self.volume.trim(&wanted);
        let mut fields = Fields {
            bytes: output.get_mut(..TRIM_SIZE).ok_or(Errno::EINVAL)?,
            at: 0,
        };
        fields.u64(start).u64(trimmed.answered()?);
        fields.u64(wanted.length_min);
        Ok(TRIM_SIZE)
    }

    fn shut_down_as(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        self.check_privileged(context)?;
        let word = read_caller(context, request.argument, 4)?;
        let word: [u8; 4] = word.try_into().map_err(|_| Errno::EINVAL)?;
        let saved = Saved::of(u32::from_ne_bytes(word)).ok_or(Errno::EINVAL)?;
        self.shut_down(context, saved)?;
        // The caller's word stays as it was.
        let room = output.get_mut(..4).ok_or(Errno::EINVAL)?;
        room.copy_from_slice(&word);
        Ok(4)
    }

    fn shut_down(&self, context: &Context<'_>, saved: Saved) -> Result<(), Errno> {
        if saved == Saved::All && self.volume.is_writable() && !self.shut.load(Ordering::Acquire) {
            self.write_back_mounts(context)?;
        }
        if self.shut.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let done = match saved {
            _ if !self.volume.is_writable() => Ok(()),
            Saved::All => self.files().sync_all(),
            Saved::Trees => self.volume.commit().map(drop),
            Saved::Nothing => Ok(()),
        };
        self.volume.shut_down();
        done.answered()
    }
}
