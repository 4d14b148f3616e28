//! `butterfs filesystem mkswapfile`: swap files on mounts of the kernel's Btrfs.
//!
//! Source of the header's layout: the kernel's swap header, linux/swap.h.

use crate::fail::{Context, Done, Failure, fail};
use crate::sizes::{self, human};
use butterfs_kernel::is_kernel_btrfs;
use clap::Args;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};
use rustix::param::page_size;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// The least bytes of a swap file.
const SIZE_MIN: u64 = 40 << 10;
/// Where the facts begin in the first page, and the magic that ends it.
const FACTS: usize = 1024;
const MAGIC: &[u8] = b"SWAPSPACE2";

/// Make a file that swapon(8) takes: without copy-on-write, without holes, with
/// a header. It must not be there yet, and belongs to root alone.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs filesystem mkswapfile -s 4g /mnt/swapfile && swapon /mnt/swapfile

The file lies on a mount of the kernel's Btrfs: a mount of ButterFS cannot hold swap files.")]
pub struct MkSwapFile {
    /// Bytes of it.
    #[arg(short, long, value_parser = sizes::parse, default_value = "2g")]
    size: u64,
    /// Bytes of a page: of the machine that will use it, 4k to 64k (default: of
    /// this one).
    #[arg(short, long, value_parser = page, value_name = "SIZE")]
    pagesize: Option<usize>,
    /// UUID in its header: one, or `random` or `clear`.
    #[arg(short = 'U', long, value_parser = uuid, default_value = "random")]
    uuid: Uuid,
    /// The file.
    file: PathBuf,
}

fn uuid(text: &str) -> Result<Uuid, String> {
    match text {
        "clear" => Ok(Uuid::nil()),
        "random" => Ok(Uuid::new_v4()),
        text => Uuid::parse_str(text)
            .map_err(|_| format!("`{text}` is none of random, clear and a UUID")),
    }
}

/// A page size that Linux has on some machine.
fn page(text: &str) -> Result<usize, String> {
    let size = sizes::parse(text)?;
    match size {
        4096 | 8192 | 16384 | 32768 | 65536 => Ok(size as usize),
        _ => Err("a page has 4k, 8k, 16k, 32k or 64k".to_owned()),
    }
}

impl MkSwapFile {
    /// Runs it.
    pub fn run(&self) -> Done {
        let name = self.file.display();
        let above = match self.file.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        if !is_kernel_btrfs(above) {
            return fail(format!(
                "{name}: is not on a mount of the kernel's Btrfs; a mount of ButterFS cannot hold \
                 swap files, and for other file systems there is mkswap(8)"
            ));
        }
        let page = self.pagesize.unwrap_or_else(page_size);
        let pages = self.size / page as u64;
        if self.size < SIZE_MIN {
            return fail(format!("{name}: a swap file has at least 40 KiB"));
        }
        let mut options = File::options();
        let file = options.write(true).read(true).create_new(true).mode(0o600);
        let file = file.open(&self.file).context(name)?;
        let size = pages * page as u64;
        if let Err(failure) = self.fill(&file, size, page) {
            // Nothing half-made stays under the name.
            let _ = std::fs::remove_file(&self.file);
            return Err(failure.at(self.file.display()));
        }
        let other = match self.pagesize {
            Some(_) => format!(" page size {page}"),
            None => String::new(),
        };
        say!(
            "create swapfile {} size {} ({size}){other}",
            self.file.display(),
            human(size)
        );
        Ok(())
    }

    fn fill(&self, file: &File, size: u64, page: usize) -> Result<(), Failure> {
        let flags = ioctl_getflags(file)?;
        ioctl_setflags(file, flags | IFlags::NOCOW).context("without copy-on-write")?;
        fallocate(file, FallocateFlags::empty(), 0, size)?;
        let last =
            u32::try_from(size / page as u64 - 1).context("more pages than swap can have")?;
        let mut header = vec![0; page];
        header[FACTS..FACTS + 4].copy_from_slice(&1_u32.to_ne_bytes());
        header[FACTS + 4..FACTS + 8].copy_from_slice(&last.to_ne_bytes());
        header[FACTS + 12..FACTS + 28].copy_from_slice(self.uuid.as_bytes());
        header[page - MAGIC.len()..].copy_from_slice(MAGIC);
        file.write_all_at(&header, 0)?;
        Ok(file.sync_all()?)
    }
}
