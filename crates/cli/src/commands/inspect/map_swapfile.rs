//! `butterfs inspect-internal map-swapfile`: where a swap file begins on its
//! device.

use crate::fail::{Context, Done, Failure, fail};
use butterfs_format::item::chunk::Chunk;
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_kernel::{self as kernel, is_kernel_btrfs};
use clap::Args;
use rustix::fs::{IFlags, ioctl_getflags};
use rustix::param::page_size;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

/// Print where a swap file begins on its device, for resuming from it, if all
/// of it can be swapped to.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs inspect map-swapfile -r /mnt/swapfile > /sys/power/resume_offset

For root, on mounts of the kernel's Btrfs.")]
pub struct MapSwapFile {
    /// Print the offset for /sys/power/resume_offset alone, in pages.
    #[arg(short, long)]
    resume_offset: bool,
    /// The file.
    file: PathBuf,
}

/// Chunks by their addresses.
type Chunks = BTreeMap<Logical, Chunk>;

fn chunks(file: &File) -> Result<Chunks, Failure> {
    let (object, kind) = (Chunk::OBJECT, ItemType::CHUNK_ITEM);
    let range = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
    let items = kernel::search_tree(file.as_fd(), TreeId::CHUNK, range);
    let mut chunks = Chunks::new();
    for (key, data) in items.context("reading the chunks, which is for root")? {
        if key.item_type == kind {
            chunks.insert(Logical(key.offset), Chunk::parse(&data)?);
        }
    }
    Ok(chunks)
}

/// The device of a logical address, and the offset on it.
fn place(chunks: &Chunks, logical: u64) -> Result<(DeviceId, u64), Failure> {
    let chunk = chunks.range(..=Logical(logical)).next_back();
    let chunk = chunk.filter(|(start, chunk)| logical - start.get() < chunk.length);
    let Some((start, chunk)) = chunk else {
        return fail(format!(
            "no chunk is at {logical}; the volume changed: try again"
        ));
    };
    match &chunk.stripes[..] {
        [stripe] if chunk.flags.profile().is_empty() => {
            Ok((stripe.device, stripe.offset.get() + (logical - start.get())))
        }
        _ => fail(format!(
            "its data are {}, and the kernel swaps to single data alone; `butterfs balance` \
             converts them, with swap off",
            chunk.flags.profile_name()
        )),
    }
}

impl MapSwapFile {
    /// Runs it.
    pub fn run(&self) -> Done {
        let name = self.file.display();
        if !is_kernel_btrfs(&self.file) {
            return fail(format!("{name}: is not on a mount of the kernel's Btrfs"));
        }
        let start = self.start().map_err(|failure| failure.at(name))?;
        let offset = start / page_size() as u64;
        if self.resume_offset {
            say!("{offset}");
            return Ok(());
        }
        say!("Physical start: {start:>12}");
        say!("Resume offset:  {offset:>12}");
        Ok(())
    }

    /// Where it begins on its device, in bytes.
    fn start(&self) -> Result<u64, Failure> {
        let file = File::open(&self.file)?;
        let facts = file.metadata()?;
        if !facts.is_file() {
            return fail("is no regular file");
        }
        if !ioctl_getflags(&file)?.contains(IFlags::NOCOW) {
            return fail(
                "is written by copy-on-write; `butterfs filesystem mkswapfile` makes files to \
                 swap to",
            );
        }
        let chunks = chunks(&file)?;
        let (mut end, mut first) = (0, None);
        for extent in kernel::file_extents(file.as_fd())? {
            if extent.offset > end {
                return fail(format!("has a hole at {end}"));
            }
            if !extent.is_plain() || extent.is_shared() {
                return fail(format!(
                    "the extent at {} is compressed, inline, or in snapshots or other files too",
                    extent.offset
                ));
            }
            let (device, at) = place(&chunks, extent.logical)?;
            let (on, _) = *first.get_or_insert((device, at));
            if on != device {
                return fail("lies on several devices");
            }
            end = extent.offset.saturating_add(extent.length);
        }
        match first {
            Some((_, at)) if end >= facts.len() => Ok(at),
            _ => fail(format!("has a hole at {end}")),
        }
    }
}
