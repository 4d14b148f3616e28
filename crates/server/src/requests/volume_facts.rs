//! What ioctls ask about the volume, its devices and where data belong.
//!
//! Source of the numbers and layouts: the kernel's interface header
//! linux/btrfs.h.

use super::answered::Answered;
use super::argument::{Bytes, Fields};
use super::callers_memory::write_caller;
use super::ioctl::Question;
use super::server::Server;
use crate::inode_shown_as;
use butterfs::files_at::ExtentPart;
use butterfs::{DeviceFacts, InodeId, InodeNumber, Logical, TreeId, is_absent_subvolume};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_fuse::reply::IoctlResult;
use butterfs_fuse::request::Ioctl;
use butterfs_fuse::{Context, Errno};

/// Bytes of `btrfs_ioctl_fs_info_args`.
const VOLUME: usize = 1024;
/// Its flags: the kinds of checksum, the generation and the UUID of nodes are
/// there.
const VOLUME_FLAGS: u64 = 0b111;
/// Bytes of `btrfs_ioctl_dev_info_args`, and where the path begins.
const DEVICE: usize = 4096;
const DEVICE_PATH: usize = 3072;
/// Bytes of `btrfs_ioctl_get_dev_stats`, and its flag that resets.
const STATS: usize = 1032;
const RESET: u64 = 1;
/// Bytes of `btrfs_ioctl_space_args`, behind which the answer goes, and of one
/// kind of space there.
const SPACE: usize = 16;
const KIND: usize = 24;
/// Bytes of `btrfs_ioctl_feature_flags`.
const FEATURES: usize = 24;
/// Bytes of `btrfs_ioctl_ino_path_args` and `btrfs_ioctl_logical_ino_args`, and
/// where they have the address of the answer.
const RESOLVE: usize = 56;
const ANSWER: usize = 48;
/// Bytes of `btrfs_data_container` before its values.
const CONTAINER: usize = 16;
/// Flag of the second version: all files that hold a part of the extent.
const IGNORE_OFFSET: u64 = 1;
/// Bytes of answers at most: paths, files, files in the second version.
const PATHS_MAX: u64 = 4096;
const FILES_MAX: u64 = 64 << 10;
const FILES_V2_MAX: u64 = 16 << 20;

/// The first bytes of the answer, zeroed, to be filled field by field.
pub(super) fn answer(output: &mut [u8], length: usize) -> Result<Fields<'_>, Errno> {
    let bytes = output.get_mut(..length).ok_or(Errno::EINVAL)?;
    bytes.fill(0);
    Ok(Fields { bytes, at: 0 })
}

/// `btrfs_data_container` of `room` bytes: values as far as they fit, each with
/// the bytes that `tail` gives for it behind all values. A value of a tail is
/// its place.
struct Container {
    room: usize,
    values: Vec<u64>,
    tails: Vec<u8>,
    missing_bytes: usize,
    missed: usize,
}

impl Container {
    fn new(size: u64, most: u64) -> Result<Self, Errno> {
        let room = usize::try_from(size.min(most)).map_err(|_| Errno::EINVAL)?;
        let room = room.checked_sub(CONTAINER).ok_or(Errno::EINVAL)?;
        Ok(Self {
            room,
            values: Vec::new(),
            tails: Vec::new(),
            missing_bytes: 0,
            missed: 0,
        })
    }

    fn taken(&self) -> usize {
        self.values.len() * 8 + self.tails.len()
    }

    /// Adds values that belong together, and a tail for one value.
    fn add(&mut self, values: &[u64], tail: &[u8]) {
        let needed = values.len() * 8 + tail.len();
        if self.missed > 0 || self.taken() + needed > self.room {
            self.missing_bytes += needed;
            self.missed += values.len();
            return;
        }
        self.values.extend(values);
        self.tails.extend(tail);
    }

    fn bytes(&self, has_tails: bool) -> Vec<u8> {
        let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_ne_bytes();
        let mut bytes = Vec::with_capacity(CONTAINER + self.taken());
        bytes.extend(word(self.room - self.taken()));
        bytes.extend(word(self.missing_bytes));
        bytes.extend(word(self.values.len()));
        bytes.extend(word(self.missed));
        let behind = (self.values.len() * 8) as u64;
        for value in &self.values {
            let value = value + if has_tails { behind } else { 0 };
            bytes.extend(value.to_ne_bytes());
        }
        bytes.extend(&self.tails);
        bytes
    }
}

impl Server {
    /// Serves a question about the volume; `None` when it is none.
    pub(super) fn control_facts(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Option<Result<IoctlResult, Errno>> {
        let question = Question::of(request.command)?;
        let told = match question {
            Question::Volume => self.tell_volume(output),
            Question::Device => self.tell_device(&Bytes(request.data), output),
            Question::Stats => self.tell_stats(context, &Bytes(request.data), output),
            Question::Space => self.tell_space(context, request, output),
            Question::Features => self.tell_features(output),
            Question::SupportedFeatures => tell_supported(output),
            Question::PathsOfInode => self.tell_paths(context, request, output),
            Question::FilesAt | Question::FilesAtV2 => {
                self.tell_files(context, request, output, question)
            }
        };
        Some(told.map(|filled| IoctlResult { value: 0, filled }))
    }

    fn tell_volume(&self, output: &mut [u8]) -> Result<usize, Errno> {
        let superblock = self.volume.superblock();
        let devices = self.volume.devices();
        let last = devices.iter().map(|device| device.item.id.get()).max();
        let kind = superblock.checksum_type;
        let mut fields = answer(output, VOLUME)?;
        fields
            .u64(last.unwrap_or(1))
            .u64(superblock.num_devices)
            .put(&superblock.fsid)
            .put(&superblock.node_size.to_ne_bytes())
            .put(&superblock.sector_size.to_ne_bytes())
            // Clones begin and end at sectors.
            .put(&superblock.sector_size.to_ne_bytes())
            .put(&kind.number().to_ne_bytes())
            .put(&(kind.size() as u16).to_ne_bytes())
            .u64(VOLUME_FLAGS)
            .u64(superblock.generation.get())
            .put(&superblock.node_fsid());
        Ok(VOLUME)
    }

    fn tell_device(&self, asked: &Bytes<'_>, output: &mut [u8]) -> Result<usize, Errno> {
        let id = asked.u64(0)?;
        let uuid = asked.0.get(8..24).ok_or(Errno::EINVAL)?;
        let is_asked = |device: &DeviceFacts| {
            device.item.id.get() == id && (uuid == [0; 16] || uuid == device.item.uuid)
        };
        let device = self.volume.devices().into_iter().find(is_asked);
        let device = device.ok_or(Errno(libc::ENODEV))?;
        let allocated: u64 = device.chunks.iter().map(|(_, bytes)| bytes).sum();
        let mut fields = answer(output, DEVICE)?;
        fields
            .u64(device.item.id.get())
            .put(&device.item.uuid)
            .u64(allocated)
            .u64(device.item.total_bytes)
            .put(&self.volume.superblock().fsid);
        fields.at = DEVICE_PATH;
        let path = device.name.unwrap_or_default().into_bytes();
        // A NUL is behind it.
        fields.put(
            path.get(..path.len().min(DEVICE - DEVICE_PATH - 1))
                .unwrap_or_default(),
        );
        Ok(DEVICE)
    }

    fn tell_stats(
        &self,
        context: &Context<'_>,
        asked: &Bytes<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let (id, count, flags) = (asked.u64(0)?, asked.u64(8)?, asked.u64(16)?);
        let devices = self.volume.devices();
        let device = devices.iter().find(|device| device.item.id.get() == id);
        let device = device.ok_or(Errno(libc::ENODEV))?;
        if flags & RESET != 0 {
            self.check_privileged(context)?;
            let reset = self.volume.reset_stats_of(device.item.id);
            reset.map_err(|_| Errno::EROFS)?;
        }
        let told = device
            .stats
            .len()
            .min(usize::try_from(count).unwrap_or(usize::MAX));
        let mut fields = answer(output, STATS)?;
        fields.u64(id).u64(told as u64).u64(flags);
        for value in device.stats.iter().take(told) {
            fields.u64(*value);
        }
        Ok(STATS)
    }

    fn tell_space(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        let slots = Bytes(request.data).u64(0)?;
        let kinds = self.volume.usage().kinds;
        let told = kinds
            .len()
            .min(usize::try_from(slots).unwrap_or(usize::MAX));
        let mut bytes = vec![0; told * KIND];
        let mut list = answer(&mut bytes, told * KIND)?;
        for kind in kinds.iter().take(told) {
            list.u64(kind.flags.0).u64(kind.total).u64(kind.used);
        }
        if told > 0 {
            write_caller(
                context,
                request.argument.saturating_add(SPACE as u64),
                &bytes,
            )?;
        }
        // Without room the caller asks for their number.
        let count = if slots == 0 { kinds.len() } else { told };
        answer(output, SPACE)?.u64(slots).u64(count as u64);
        Ok(SPACE)
    }

    fn tell_features(&self, output: &mut [u8]) -> Result<usize, Errno> {
        let superblock = self.volume.superblock();
        answer(output, FEATURES)?
            .u64(superblock.compat)
            .u64(superblock.compat_ro.0)
            .u64(superblock.incompat.0);
        Ok(FEATURES)
    }

    fn tell_paths(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<usize, Errno> {
        self.check_privileged(context)?;
        let asked = Bytes(request.data);
        let mut container = Container::new(asked.u64(8)?, PATHS_MAX)?;
        let tree = self.id(request.node).tree;
        let inode = self.asked_inode(tree, asked.u64(0)?);
        for path in self.volume.paths_of(inode).answered()? {
            let place = container.tails.len() as u64;
            container.add(&[place], &[&path[..], &[0]].concat());
        }
        write_caller(context, asked.u64(ANSWER)?, &container.bytes(true))?;
        answer(output, RESOLVE)?.put(request.data.get(..RESOLVE).ok_or(Errno::EINVAL)?);
        Ok(RESOLVE)
    }

    /// The inode with a number that may be the one that programs see.
    fn asked_inode(&self, tree: TreeId, number: u64) -> InodeId {
        match inode_shown_as(number, tree) {
            shown if shown.tree == tree && !is_absent_subvolume(shown) => shown,
            _ => InodeId {
                tree,
                number: InodeNumber(number),
            },
        }
    }

    fn tell_files(
        &self,
        context: &Context<'_>,
        request: &Ioctl<'_>,
        output: &mut [u8],
        question: Question,
    ) -> Result<usize, Errno> {
        self.check_privileged(context)?;
        let asked = Bytes(request.data);
        let (most, flags) = match question {
            Question::FilesAtV2 => (FILES_V2_MAX, asked.u64(40)?),
            _ => (FILES_MAX, 0),
        };
        let reserved = [16, 24, 32].map(|at| asked.u64(at));
        let is_new = question == Question::FilesAtV2;
        if flags & !IGNORE_OFFSET != 0 || is_new && reserved.iter().any(|word| *word != Ok(0)) {
            return Err(Errno::EINVAL);
        }
        let part = match flags & IGNORE_OFFSET {
            0 => ExtentPart::Address,
            _ => ExtentPart::Extent,
        };
        let mut container = Container::new(asked.u64(8)?, most)?;
        let found = self
            .volume
            .files_at(Logical(asked.u64(0)?), part)
            .answered()?;
        for file in found.ok_or(Errno::ENOENT)? {
            let values = [file.inode.get(), file.offset.0, file.tree.get()];
            container.add(&values, &[]);
        }
        write_caller(context, asked.u64(ANSWER)?, &container.bytes(false))?;
        answer(output, RESOLVE)?.put(request.data.get(..RESOLVE).ok_or(Errno::EINVAL)?);
        Ok(RESOLVE)
    }
}

/// What this server can write, and what may be set or cleared while a volume is
/// mounted, which is nothing.
fn tell_supported(output: &mut [u8]) -> Result<usize, Errno> {
    answer(output, 3 * FEATURES)?
        .u64(0)
        .u64(CompatRo::SUPPORTED.0)
        .u64(Incompat::SUPPORTED.0);
    Ok(3 * FEATURES)
}
