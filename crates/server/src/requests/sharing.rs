//! Dedupe, defragmentation and maps of extents over ioctls.
//!
//! FICLONE, FIDEDUPERANGE and FIEMAP never reach a FUSE server. Requests of
//! ButterFS' own stand in for them (`butterfs_kernel::butterfs_mount`). What a
//! caller may do follows from how it opened its files, and the kernel checked
//! that: the source for reading, the target for writing.
//!
//! Source of the layouts: the kernel's interface header linux/btrfs.h.

use super::answered::Answered;
use super::ioctl::Command;
use super::server::Server;
use butterfs::{
    Algorithm, Deduped, Defragment, Defragmented, ExclusiveOperation, InodeFlags, Logical,
    MappedExtent, MappedKind, Recompress, Sharing,
};
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno, InvalidRange, NodeId};
use butterfs_kernel as btrfs;
use butterfs_kernel::butterfs_mount::{self as own, Request};

/// Extents of this size are large enough if the caller says nothing, as in the
/// kernel.
const LARGE: u64 = 256 << 10;

impl Server {
    /// Serves a request of ButterFS' own; `None` when it is none.
    pub(super) fn control_sharing(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let what = Request::of(request.command)?;
        let mut words = request.data.chunks_exact(8).map(|bytes| {
            let bytes = bytes.first_chunk().copied();
            bytes.map_or(0, u64::from_ne_bytes)
        });
        let mut input = [0; 6];
        for (to, from) in input.iter_mut().zip(&mut words) {
            *to = from;
        }
        let answer = match what {
            Request::Version => Ok(vec![own::CURRENT]),
            Request::Dedupe => self.dedupe(context, input),
            Request::Extents => self.extents(request.node, input),
            Request::Exclusive => self.exclusive().map(|number| vec![number]),
            Request::Defragment => self.defragment(context, request.node, input),
        };
        Some(answer.and_then(|answer| {
            let (_, room) = output
                .split_at_mut_checked(8 * what.words_in())
                .ok_or(Errno::EINVAL)?;
            for (to, from) in room.chunks_exact_mut(8).zip(answer) {
                to.copy_from_slice(&from.to_ne_bytes());
            }
            Ok(IoctlResult {
                value: 0,
                filled: output.len(),
            })
        }))
    }

    /// The operation on the whole volume that is under way, by its number.
    fn exclusive(&self) -> Result<u64, Errno> {
        let running = self.volume.exclusive_operation().map_err(|error| {
            tracing::error!(%error, "answered EIO");
            Errno::EIO
        })?;
        let shown = running.map(|operation| match operation {
            ExclusiveOperation::Balance => own::ExclusiveOperation::Balance,
            ExclusiveOperation::BalancePaused => own::ExclusiveOperation::BalancePaused,
            ExclusiveOperation::DeviceAdd => own::ExclusiveOperation::DeviceAdd,
            ExclusiveOperation::DeviceRemove => own::ExclusiveOperation::DeviceRemove,
            ExclusiveOperation::DeviceReplace => own::ExclusiveOperation::DeviceReplace,
            ExclusiveOperation::Resize => own::ExclusiveOperation::Resize,
        });
        Ok(shown.map_or(0, own::ExclusiveOperation::number))
    }

    fn dedupe(&self, context: &Context<'_>, words: [u64; 6]) -> Result<Vec<u64>, Errno> {
        let [source, from, length, target, to, _] = words;
        let (source, source_flags) = self.caller_open(context, source)?;
        let (target, target_flags) = self.caller_open(context, target)?;
        if source_flags & libc::O_ACCMODE == libc::O_WRONLY
            || (source_flags | target_flags) & libc::O_PATH != 0
        {
            return Err(Errno::EBADF);
        }
        if target_flags & libc::O_ACCMODE == libc::O_RDONLY {
            // As in the kernel: the caller could write the file, or owns it.
            self.check_owner(context, target)
                .or_else(|_| self.check_writer(context, target))?;
        }
        let source = self.files().inode(source).answered()?;
        let target = self.files().inode(target).answered()?;
        self.check_change(&target)?;
        let sums = [&source, &target].map(|inode| Self::flags(inode) & InodeFlags::NODATASUM);
        if length == 0 {
            // Callers ask this before they copy anything.
            return match sums[0] == sums[1] {
                true => Ok(vec![0, 0]),
                false => Err(Errno::EINVAL),
            };
        }
        let targets = [(target, to)];
        let mut results = self.files().dedupe_range((&source, from), length, &targets);
        let result = results.pop().ok_or(Errno::EIO)?.answered()?;
        if let ([(target, _)], Some(notifier)) = (&targets, self.notifier.get())
            && let Ok(node) = self.nodes.node_of(target.id)
        {
            // The space that it takes may have changed.
            let _ = notifier.invalidate_inode(node, InvalidRange::AttributesOnly);
        }
        Ok(match result {
            Deduped::Shared(bytes) => vec![bytes, 0],
            Deduped::Differs => vec![0, 1],
        })
    }

    /// Where a file lies, as FIEMAP tells it. As there, neighbours on the device
    /// are one extent.
    fn extents(&self, node: NodeId, words: [u64; 6]) -> Result<Vec<u64>, Errno> {
        const LAST: u32 = 1;
        let [start, end, ..] = words;
        let inode = self.inode(node)?;
        let limit = own::EXTENTS_MAX + 1;
        let map = self
            .files()
            .extent_map(&inode, start..u64::MAX, limit)
            .answered()?;
        let is_all = map.len() < limit;
        let mut told: Vec<own::MappedExtent> = Vec::new();
        for extent in map.iter().take(own::EXTENTS_MAX).map(told_as) {
            match told.last_mut() {
                Some(last) if continues(last, &extent) => last.length += extent.length,
                _ => told.push(extent),
            }
        }
        if let Some(last) = told.last_mut().filter(|_| is_all) {
            last.flags |= LAST;
        }
        told.retain(|extent| extent.offset < end);
        let mut answer = vec![told.len() as u64];
        for extent in told {
            answer.extend([
                extent.offset,
                extent.logical,
                extent.length,
                extent.flags.into(),
            ]);
        }
        Ok(answer)
    }

    fn defragment(
        &self,
        context: &Context<'_>,
        node: NodeId,
        words: [u64; 6],
    ) -> Result<Vec<u64>, Errno> {
        let [start, end, large, flags, number, level] = words;
        if flags & !(own::UNSHARE | own::PLAN | own::COMPRESS) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let wanted = Defragment {
            range: start..end,
            large,
            compress: match (flags & own::COMPRESS, number) {
                (0, _) => Recompress::Keep,
                (_, 0) => Recompress::Plain,
                _ => {
                    let algorithm = algorithm(number)?;
                    let level = i32::try_from(level.cast_signed()).map_err(|_| Errno::EINVAL)?;
                    Recompress::With(algorithm, algorithm.clamp_level(level))
                }
            },
            sharing: match flags & own::UNSHARE {
                0 => Sharing::Keep,
                _ => Sharing::Break,
            },
        };
        let done = if flags & own::PLAN == 0 {
            self.run_defragment(context, node, &wanted)?
        } else {
            let inode = self.inode(node)?;
            self.check_writer(context, inode.id)?;
            self.files().plan_defragment(&inode, &wanted).answered()?
        };
        let numbers = [done.extents, done.rewritten_extents, done.rewritten];
        Ok([&numbers[..], &[done.shared, done.new_extents]].concat())
    }

    /// The kernel's requests. As there, shared data are rewritten too. Metadata
    /// (if a directory is named) are not defragmented.
    pub(super) fn defragment_as_kernel(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
    ) -> Result<(), Errno> {
        let whole = Defragment {
            large: LARGE,
            sharing: Sharing::Break,
            ..Defragment::default()
        };
        let wanted = match Command::of(request.command) {
            Some(Command::DefragmentRange) => ranged(request.data, whole)?,
            _ => whole,
        };
        self.run_defragment(context, request.node, &wanted)
            .map(drop)
    }

    fn run_defragment(
        &self,
        context: &Context<'_>,
        node: NodeId,
        wanted: &Defragment,
    ) -> Result<Defragmented, Errno> {
        let inode = self.inode(node)?;
        self.check_tree(inode.id.tree)?;
        if self
            .files()
            .attributes_of(&inode)
            .answered()?
            .is_directory()
        {
            self.check_privileged(context)?;
            return Err(Errno::EOPNOTSUPP);
        }
        self.check_writer(context, inode.id)?;
        self.check_change(&inode)?;
        self.files().defragment(&inode, wanted).answered()
    }
}

/// FIEMAP's flags.
const ENCODED: u32 = 1 << 3;
const NOT_ALIGNED: u32 = 1 << 8;
const INLINE: u32 = 1 << 9;
const UNWRITTEN: u32 = 1 << 11;
const SHARED: u32 = 1 << 13;

fn told_as(extent: &MappedExtent) -> own::MappedExtent {
    let mut flags = match extent.kind {
        MappedKind::Inline => INLINE | NOT_ALIGNED,
        MappedKind::Data => 0,
        MappedKind::Preallocated => UNWRITTEN,
    };
    if extent.compression.is_some() {
        flags |= ENCODED;
    }
    if extent.is_shared {
        flags |= SHARED;
    }
    own::MappedExtent {
        offset: extent.offset,
        logical: extent.logical.map_or(0, Logical::get),
        length: extent.length,
        flags,
    }
}

/// Whether `next` begins where `last` ends, in the file and on the device.
fn continues(last: &own::MappedExtent, next: &own::MappedExtent) -> bool {
    last.flags == next.flags
        && last.flags & (ENCODED | INLINE) == 0
        && last.offset.checked_add(last.length) == Some(next.offset)
        && last.logical.checked_add(last.length) == Some(next.logical)
}

fn algorithm(number: u64) -> Result<Algorithm, Errno> {
    let number = u8::try_from(number).ok();
    number.and_then(Algorithm::from_number).ok_or(Errno::EINVAL)
}

/// What `btrfs_ioctl_defrag_range_args` says.
fn ranged(data: &[u8], mut wanted: Defragment) -> Result<Defragment, Errno> {
    /// The caller asks that writing begins at once, as it does here anyway.
    const START_IO: u64 = 1 << 1;
    let data: &[u8; btrfs::DEFRAGMENT] = data.first_chunk().ok_or(Errno::EINVAL)?;
    let word = |at: usize| -> u64 {
        let bytes = data[at..].first_chunk().copied();
        bytes.map_or(0, u64::from_ne_bytes)
    };
    let [number, level, ..] = data[28..] else {
        return Err(Errno::EINVAL);
    };
    let (start, length, flags) = (word(0), word(8), word(16));
    let known = btrfs::DEFRAGMENT_COMPRESS
        | START_IO
        | btrfs::DEFRAGMENT_LEVEL
        | btrfs::DEFRAGMENT_UNCOMPRESS;
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    wanted.range = start..start.saturating_add(length);
    // Four bytes, before the compression's.
    let large = word(24) & u64::from(u32::MAX);
    if large != 0 {
        wanted.large = large;
    }
    let has = |flag: u64| flags & flag != 0;
    wanted.compress = match (
        has(btrfs::DEFRAGMENT_COMPRESS),
        has(btrfs::DEFRAGMENT_UNCOMPRESS),
    ) {
        (true, true) => return Err(Errno::EINVAL),
        (false, false) => Recompress::Keep,
        (false, true) => Recompress::Plain,
        (true, false) => {
            let algorithm = match number {
                0 => Algorithm::Zlib,
                number => algorithm(number.into())?,
            };
            let level = match has(btrfs::DEFRAGMENT_LEVEL) {
                true => algorithm.clamp_level(i8::from_ne_bytes([level]).into()),
                false => algorithm.default_level(),
            };
            Recompress::With(algorithm, level)
        }
    };
    Ok(wanted)
}
