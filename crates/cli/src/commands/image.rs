//! `butterfs image`, also called btrfs-image: the metadata of a volume in a file.

use crate::commands::device::named::{is_same, verify_different, verify_nothing_there};
use crate::fail::{Context, Done, Failure, fail};
use crate::whole_file::WholeFile;
use butterfs::{Access, BlockDevice, FileDevice};
use butterfs_admin::image::{
    ImageError, ImageOptions, Made, Names, Walk, make, read_begin, restore,
};
use butterfs_format::item::device::DeviceItem;
use clap::{ArgAction, Args};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many nodes that cannot be read are named one by one.
const NAMED_MAX: usize = 20;

/// Makes and restores images of a volume's metadata, as btrfs-image does.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs image -c 9 /dev/sdx1 metadata.image       to look at elsewhere
  butterfs image -ss disk.img - | xz > shown.xz      without names
  butterfs image -r metadata.image disk.img          what was imaged, without data
  butterfs image -r -m two.image one.img two.img     of a volume of two devices

With -r, all that was on a target is lost. A target that holds something known, such as a file system, a partition table or a swap area, is refused without -f; btrfs-image does not ask.

An image holds all nodes and no data; content of small files that lies in nodes is left out too. A damaged volume can be imaged: nodes that cannot be read are named and left out, and the exit code is 1. btrfs-image restores what this makes, and the other way round. What was restored can be read and checked; ButterFS does not write it.")]
pub struct Image {
    /// Restore: SOURCE is an image.
    #[arg(short = 'r', long)]
    restore: bool,
    /// Level of compression, 0 (none) to 9.
    #[arg(short = 'c', value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    level: u8,
    /// Threads, 1 to 32 (default: one for each processor).
    #[arg(short = 't', value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    threads: Option<u8>,
    /// Leave the chunk tree as it is; that is always so here.
    #[arg(short = 'o', requires = "restore")]
    old: bool,
    /// Replace names by garbage; twice: by garbage with the same hash, so that
    /// the volume can be checked.
    #[arg(short = 's', action = ArgAction::Count)]
    sanitize: u8,
    /// Find nodes by walking all trees, where the extent tree is damaged.
    #[arg(short = 'w')]
    walk: bool,
    /// Restore a volume of several devices, to as many files or devices.
    #[arg(short = 'm', requires = "restore")]
    multi: bool,
    /// Restore onto a target that holds something, too; that is lost.
    #[arg(short = 'f', long, requires = "restore")]
    force: bool,
    /// Volume or image; `-` for an image on standard input.
    source: PathBuf,
    /// Image, or where the volume is restored to; `-` for an image on standard
    /// output.
    #[arg(required = true)]
    targets: Vec<PathBuf>,
}

impl Image {
    /// Runs it.
    pub fn run(self) -> Done {
        if let Some(threads) = self.threads {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
            pool.build_global().context("threads")?;
        }
        match self.restore {
            true => self.bring_back(),
            false => self.make(),
        }
    }

    fn make(&self) -> Done {
        let [target] = &self.targets[..] else {
            return fail("an image is one file; -m is for restoring");
        };
        let paths = butterfs::find_members(&self.source);
        let devices = butterfs::open_members(&paths, Access::ReadOnly)?;
        let options = ImageOptions {
            level: self.level,
            names: match self.sanitize {
                0 => Names::Kept,
                1 => Names::Garbage,
                _ => Names::Colliding,
            },
            walk: match self.walk {
                true => Walk::Trees,
                false => Walk::ExtentTree,
            },
        };
        let made = if target == Path::new("-") {
            let out = io::stdout();
            if out.is_terminal() {
                return fail("an image is not for a terminal; name a file, or use a pipe");
            }
            let (made, mut out) = self.written(&devices, &options, BufWriter::new(out.lock()))?;
            out.flush().map_err(crate::output::named)?;
            made
        } else {
            let file = BufWriter::new(WholeFile::create(target)?);
            let (made, file) = self.written(&devices, &options, file)?;
            let file = file.into_inner().map_err(io::IntoInnerError::into_error);
            file.context(target.display())?.finish()?;
            made
        };
        self.tell(&made)
    }

    fn written<W: Write>(
        &self,
        devices: &[Arc<dyn BlockDevice>],
        options: &ImageOptions,
        out: W,
    ) -> Result<(Made, W), Failure> {
        match make(devices, options, out) {
            Err(ImageError::Io(error)) => Err(crate::output::named(error).into()),
            made => made.context(self.source.display()),
        }
    }

    fn tell(&self, made: &Made) -> Done {
        if made.without_collision > 0 {
            note!(
                "{} names are too short for another of the same hash; they became garbage, and \
                 a check of the volume says so",
                made.without_collision
            );
        }
        if made.unreadable.is_empty() {
            return Ok(());
        }
        for node in made.unreadable.iter().take(NAMED_MAX) {
            let (logical, level) = (node.logical, node.level);
            note!("the node of level {level} at logical {logical} cannot be read");
        }
        let count = made.unreadable.len();
        let hint = match self.walk {
            true => "",
            false => "; -w finds nodes without the extent tree",
        };
        fail(format!(
            "{}: the image has {} nodes and lacks {count} that cannot be read{hint}",
            self.source.display(),
            made.nodes
        ))
    }

    fn bring_back(&self) -> Done {
        if self.targets.len() > 1 && !self.multi {
            return fail("several targets need -m, which restores a volume of several devices");
        }
        verify_different(&self.targets)?;
        let mut opened = self.verified_targets()?;
        let mut image = match self.source == Path::new("-") {
            true => standard_input().context("standard input")?,
            false => File::open(&self.source).context(self.source.display())?,
        };
        if !image.metadata().is_ok_and(|facts| facts.is_file()) {
            image = spooled(image).context(self.source.display())?;
        }
        let mut input = BufReader::new(image);
        let restored = restore(&mut input, &mut |items| {
            self.targets_for(items, &mut opened)
        });
        restored.context(self.source.display())?;
        Ok(())
    }

    /// The targets that exist, open and locked until the end.
    ///
    /// # Errors
    /// A target holds what nobody said may be lost.
    fn verified_targets(&self) -> Result<Vec<Option<FileDevice>>, Failure> {
        let open = |path: &PathBuf| {
            if !path.exists() {
                return Ok(None);
            }
            if is_same(path, &self.source) {
                return fail(format!(
                    "{} is the image itself; restore it to another file",
                    path.display()
                ));
            }
            let device = FileDevice::open(path, Access::ReadWrite)?;
            if !self.force {
                verify_nothing_there(path, &device)?;
            }
            Ok(Some(device))
        };
        self.targets.iter().map(open).collect()
    }

    /// The targets. Each is made as large as its device was.
    fn targets_for(
        &self,
        items: &[DeviceItem],
        opened: &mut Vec<Option<FileDevice>>,
    ) -> Result<Vec<Arc<dyn BlockDevice>>, ImageError> {
        if items.len() != self.targets.len() {
            return Err(ImageError::Devices {
                volume: items.len(),
                given: self.targets.len(),
            });
        }
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        let targets = self.targets.iter().zip(opened.drain(..));
        for ((path, opened), item) in targets.zip(items) {
            let device = match opened {
                Some(device) => device,
                None => FileDevice::create(path, item.total_bytes)?,
            };
            if !device.is_block_device() {
                device.enlarge(item.total_bytes)?;
            }
            devices.push(Arc::new(device));
        }
        Ok(devices)
    }
}

fn standard_input() -> io::Result<File> {
    use std::os::fd::AsFd;
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// An image that can be read twice. What is no image may have no end.
fn spooled(mut image: File) -> Result<File, ImageError> {
    let begin = read_begin(&mut image)?;
    let path = std::env::temp_dir().join(format!("butterfs-image.{}", std::process::id()));
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    file.write_all(&begin)?;
    io::copy(&mut image, &mut file)?;
    file.rewind()?;
    Ok(file)
}
