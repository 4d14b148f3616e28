//! `butterfs build`: an image from files, without mounting it and without
//! root.
//!
//! Owns the options and the manifest; the image itself is made by the crate
//! `admin`.

mod sends;

use crate::commands::device::named::is_same;
use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::meter::Meter;
use crate::sizes;
use crate::whole_file::WholeFile;
use butterfs::{Access, FileDevice, Method, Timespec};
use butterfs_admin::build::{
    Body, BuildOptions, Built, Copies, FileTree, Gathered, OwnerMap, OwnerRange, Source,
    SubvolumeSpec, build,
};
use butterfs_format::ChecksumType;
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// The pause between two turns of the wheel that shows that work goes on.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of the longest label.
const LABEL_MAX: usize = 255;

/// Builds an image from directories, archives, OCI layouts and send streams.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs build -o root.img --from rootfs.tar.zst --compress zstd
  butterfs build -o root.img --from debian-oci --layers /layers --subvolume /home
  butterfs build -o root.img --send monday.stream --send tuesday.stream --layers /before
  debootstrap ... ; butterfs build -o root.img --from rootfs --uid-map 1000:0:1
  SOURCE_DATE_EPOCH=1700000000 butterfs build -o root.img --from rootfs --seed v1.2

Sources are laid over each other in their order, and the files of the last send are laid over them. The image
has no free space for data unless --size says more; enlarge its file later, and run
`butterfs filesystem resize max` on it. With --seed (and SOURCE_DATE_EPOCH, which is the time of
birth and the latest time of any file) the same files give the same bytes, on every machine. Kept:
type, mode, owner, time of the last change, extended attributes, ACLs, hard links, device numbers.")]
pub struct Build {
    /// The image.
    #[arg(short, long, value_name = "IMAGE")]
    output: PathBuf,
    /// A directory, an archive (plain, gzip, zstd), an OCI layout, or - for an
    /// archive on standard input; may be repeated.
    #[arg(long, value_name = "SOURCE")]
    from: Vec<PathBuf>,
    /// Make the directory at this path a subvolume; ro: read-only, default: a
    /// mount shows it.
    #[arg(long, value_name = "PATH[:ro][:default]")]
    subvolume: Vec<SubvolumeSpec>,
    /// A send stream, or - for one on standard input; may be repeated: a whole
    /// snapshot first, then what changed since.
    #[arg(long, value_name = "STREAM")]
    send: Vec<PathBuf>,
    /// Keep a read-only snapshot in this directory after each OCI layer and each
    /// send, except the last.
    #[arg(long, value_name = "PATH")]
    layers: Option<String>,
    /// Compress content where it pays: zstd, zlib or lzo, with a level.
    #[arg(long, value_name = "ALGORITHM[:LEVEL]")]
    compress: Option<String>,
    /// Bytes of the image; min: as few as possible.
    #[arg(long, value_name = "min|SIZE", default_value = "min", value_parser = size)]
    size: Wanted,
    /// Label.
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    label: String,
    /// UUID of the volume.
    #[arg(short = 'U', long)]
    uuid: Option<Uuid>,
    /// A text from which all UUIDs that are not given are derived.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Map the COUNT users and groups from FROM on to those from TO on; may be
    /// repeated. Every owner must then be in one of the ranges.
    #[arg(long, value_name = "FROM:TO:COUNT")]
    uid_map: Vec<OwnerRange>,
    /// Copies of metadata.
    #[arg(short, long, value_name = "PROFILE", default_value = "dup")]
    metadata: Profile,
    /// Checksums: crc32c, xxhash, sha256 or blake2.
    #[arg(long, visible_alias = "checksum", default_value = "crc32c")]
    csum: String,
    /// Write what the image has, as JSON.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Threads, at most 256 (default: one for each core).
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    /// Leave out and name files that cannot be taken, and build of all else; the
    /// exit code is then 1.
    #[arg(long)]
    keep_going: bool,
    /// Replace the image if it exists.
    #[arg(short, long)]
    force: bool,
    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,
}

/// How large an image shall be.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Least,
    Bytes(u64),
}

fn size(text: &str) -> Result<Wanted, String> {
    match text {
        "min" => Ok(Wanted::Least),
        text => sizes::parse(text).map(Wanted::Bytes),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Profile {
    Single,
    Dup,
}

#[derive(Serialize)]
struct Manifest {
    label: String,
    uuid: String,
    size: u64,
    used: u64,
    inodes: u64,
    subvolumes: Vec<String>,
    files: Vec<FileFact>,
}

#[derive(Serialize)]
struct FileFact {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    mtime_seconds: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Build {
    /// Runs it.
    pub fn run(self) -> Done {
        let inputs = self.from.iter().chain(&self.send);
        if inputs.filter(|path| path.as_os_str() == "-").count() > 1 {
            return fail("standard input can be one source only; give the others as files");
        }
        let mut inputs = self.from.iter().chain(&self.send);
        if let Some(input) = inputs.find(|input| is_same(input, &self.output)) {
            return fail(format!(
                "{} is the image itself, which would be replaced; give -o another name",
                input.display()
            ));
        }
        let mut replaced = None;
        if self.output.exists() {
            let kind = std::fs::metadata(&self.output).context(self.output.display())?;
            if !kind.is_file() {
                return fail(format!(
                    "{} is no regular file; build an image and write it there",
                    self.output.display()
                ));
            }
            if !self.force {
                return fail(format!("{} exists; -f replaces it", self.output.display()));
            }
            // Held open, so that nobody uses it until it is replaced.
            let old = FileDevice::open(&self.output, Access::ReadWrite);
            replaced = Some(old.context(self.output.display())?);
        }
        let epoch = epoch()?;
        let options = self.options(epoch)?;
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads.into())
            .build()
            .context("threads")?;
        let mut gathered = threads.install(|| self.gather(options.time))?;
        let built = threads.install(|| self.make(&mut gathered, &options))?;
        drop(replaced);
        if let Some(path) = &self.manifest {
            let mut file = WholeFile::create(path)?;
            let manifest = self.manifest(&gathered, &built);
            serde_json::to_writer_pretty(&mut file, &manifest)?;
            file.write_all(b"\n")?;
            file.finish()?;
        }
        if gathered.sockets > 0 {
            note!("butterfs: {} sockets are left out", gathered.sockets);
        }
        let left_out = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for error in std::mem::take(&mut gathered.left_out) {
            left_out.undone(Undone::Entry(error.into()))?;
        }
        if !self.quiet {
            say!(
                "{}: {}, of which {} are used; {} inodes in {} subvolumes; UUID {}",
                self.output.display(),
                sizes::human(built.total_bytes),
                sizes::human(built.bytes_used),
                built.inodes,
                built.subvolumes,
                Uuid::from_bytes(built.uuid)
            );
        }
        left_out.ended("in the image")
    }

    fn gather(&self, time: Timespec) -> Result<Gathered, Failure> {
        let spinner = ProgressBar::new_spinner().with_message("reading what goes in");
        spinner.enable_steady_tick(TICK);
        let gathered = self.gather_all(time);
        spinner.finish_and_clear();
        gathered
    }

    fn gather_all(&self, time: Timespec) -> Result<Gathered, Failure> {
        let mut gathered = Gathered::new(time, OwnerMap::new(self.uid_map.clone()));
        if self.keep_going {
            gathered = gathered.keep_going();
        }
        for source in &self.from {
            let source = match source.as_os_str() == "-" {
                true => Source::Input,
                false => Source::Path(source.clone()),
            };
            gathered.add(&source)?;
        }
        if !self.send.is_empty() {
            let each = match self.layers {
                Some(_) => sends::Each::Kept,
                None => sends::Each::Replaced,
            };
            sends::add(&mut gathered, &self.send, each)?;
        }
        Ok(gathered)
    }

    fn options(&self, epoch: Option<Timespec>) -> Result<BuildOptions, Failure> {
        if self.label.len() > LABEL_MAX || self.label.contains(['\0', '\n', '\r']) {
            return fail("a label has at most 255 bytes and no line breaks");
        }
        let compression = match self.compress.as_deref() {
            None => None,
            Some(text) => match Method::parse(text) {
                Some(method) => method,
                None => {
                    return fail(format!(
                        "there is no compression {text}; take zstd, zlib or lzo, as in zstd:9"
                    ));
                }
            },
        };
        let checksum = ChecksumType::from_name(&self.csum).ok_or_else(|| {
            Failure(format!(
                "there is no checksum {}; take crc32c, xxhash, sha256 or blake2",
                self.csum
            ))
        })?;
        let layers = self.layers.as_deref().map(|path| {
            let names = path.split('/').filter(|name| !name.is_empty());
            names.map(|name| name.as_bytes().to_vec()).collect()
        });
        Ok(BuildOptions {
            label: self.label.clone(),
            uuid: self.uuid.map(Uuid::into_bytes),
            seed: self.seed.clone(),
            time: epoch.map_or_else(now, Ok)?,
            latest: epoch,
            compression,
            checksum,
            copies: match self.metadata {
                Profile::Single => Copies::Single,
                Profile::Dup => Copies::Dup,
            },
            size: match self.size {
                Wanted::Least => None,
                Wanted::Bytes(bytes) => Some(bytes),
            },
            subvolumes: self.subvolume.clone(),
            layers,
        })
    }

    /// Builds the image. It gets its name when it is complete.
    fn make(&self, gathered: &mut Gathered, options: &BuildOptions) -> Result<Built, Failure> {
        let image = WholeFile::replace(&self.output)?;
        let mut meter = Meter::new();
        let watch = &mut |done, all| meter.show(done, all);
        let built = build(gathered, options, image.file(), watch);
        meter.end();
        let built = built?;
        image.finish()?;
        Ok(built)
    }

    fn manifest(&self, gathered: &Gathered, built: &Built) -> Manifest {
        let subvolumes = self.subvolume.iter().map(|spec| {
            let names = spec.path.iter().map(|name| String::from_utf8_lossy(name));
            names.fold(String::new(), |path, name| format!("{path}/{name}"))
        });
        Manifest {
            label: self.label.clone(),
            uuid: Uuid::from_bytes(built.uuid).to_string(),
            size: built.total_bytes,
            used: built.bytes_used,
            inodes: built.inodes,
            subvolumes: subvolumes.collect(),
            files: files(&gathered.tree, gathered),
        }
    }
}

fn files(tree: &FileTree, gathered: &Gathered) -> Vec<FileFact> {
    let mut files = Vec::new();
    tree.visit(&mut |path, id| {
        let node = tree.node(id);
        let (kind, size, target) = match &node.body {
            Body::Directory(_) => ("directory", None, None),
            Body::File(content) => ("file", Some(gathered.contents.size(*content)), None),
            Body::Symlink(target) => {
                let target = String::from_utf8_lossy(target).into_owned();
                ("symlink", None, Some(target))
            }
            Body::CharDevice(_) => ("char device", None, None),
            Body::BlockDevice(_) => ("block device", None, None),
            Body::Fifo => ("fifo", None, None),
        };
        files.push(FileFact {
            path: match path.is_empty() {
                true => "/".to_owned(),
                false => String::from_utf8_lossy(path).into_owned(),
            },
            kind,
            mode: format!("{:o}", node.metadata.permissions),
            uid: node.metadata.uid,
            gid: node.metadata.gid,
            mtime_seconds: node.metadata.mtime.seconds,
            size,
            target,
        });
    });
    files
}

/// What SOURCE_DATE_EPOCH says.
fn epoch() -> Result<Option<Timespec>, Failure> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    match seconds {
        Some(seconds) => Ok(Some(Timespec {
            seconds,
            nanoseconds: 0,
        })),
        None => fail(format!(
            "SOURCE_DATE_EPOCH is `{}`, not a number of seconds",
            text.display()
        )),
    }
}

fn now() -> Result<Timespec, Failure> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Timespec {
        seconds: i64::try_from(since.as_secs())?,
        nanoseconds: since.subsec_nanos(),
    })
}
