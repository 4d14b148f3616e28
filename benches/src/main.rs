//! The same steps on ButterFS through the library, on ButterFS over FUSE and on
//! kernel Btrfs, in one run, on files in memory; prints ratios to the kernel.
//!
//! Usage (as root): butterfs-benches [FILES] [MIB]; FILES are spread over 100
//! directories (default 200000), MIB is the sequential file (default 4096).
//! `butterfs-benches open [FILES]` measures the opening of a 1 TiB volume that
//! holds none, a tenth, and all of FILES (default 10000000).
//! `butterfs-benches fsync [SECONDS]` measures making data durable.

mod fsync;
mod open;

use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

const DIRS: usize = 100;
const MIB: usize = 1 << 20;
const RANDOM_READS: usize = 100_000;
/// A real tree that every Debian machine has.
const TREE: &str = "/usr/share";

/// Sizes of the run.
#[derive(Clone, Copy)]
struct Scale {
    files: usize,
    mib: usize,
}

/// What is measured: the same calls, whoever serves them.
trait Target {
    fn name(&self) -> &'static str;
    /// Fresh caches; everything durable.
    fn cold(&mut self);
    fn mkdir(&mut self, dir: usize);
    fn create(&mut self, dir: usize, file: usize, data: &[u8]);
    fn stat(&mut self, dir: usize, file: usize);
    fn unlink(&mut self, dir: usize, file: usize);
    fn sync(&mut self);
    /// Copies a tree of the host into the root.
    fn copy_tree(&mut self, source: &str);
    fn begin_big(&mut self);
    fn write_big(&mut self, offset: u64, data: &[u8]);
    fn read_big(&mut self, offset: u64, data: &mut [u8]);
    fn end(&mut self);
}

/// A mounted directory.
struct Mounted {
    name: &'static str,
    point: PathBuf,
    remount: Box<dyn Fn(Mount)>,
    big: Option<File>,
}

enum Mount {
    On,
    Off,
}

impl Mounted {
    fn path(&self, dir: usize, file: usize) -> PathBuf {
        self.point.join(format!("d{dir}/f{file}"))
    }
}

impl Target for Mounted {
    fn name(&self) -> &'static str {
        self.name
    }
    fn cold(&mut self) {
        let open = self.big.take().is_some();
        (self.remount)(Mount::Off);
        drop_caches();
        (self.remount)(Mount::On);
        if open {
            let path = self.point.join("big");
            self.big = Some(File::options().read(true).write(true).open(path).unwrap());
        }
    }
    fn mkdir(&mut self, dir: usize) {
        fs::create_dir(self.point.join(format!("d{dir}"))).unwrap();
    }
    fn create(&mut self, dir: usize, file: usize, data: &[u8]) {
        let file = File::create(self.path(dir, file)).unwrap();
        if !data.is_empty() {
            file.write_all_at(data, 0).unwrap();
        }
    }
    fn stat(&mut self, dir: usize, file: usize) {
        fs::symlink_metadata(self.path(dir, file)).unwrap();
    }
    fn unlink(&mut self, dir: usize, file: usize) {
        fs::remove_file(self.path(dir, file)).unwrap();
    }
    fn sync(&mut self) {
        File::open(&self.point).unwrap().sync_all().unwrap();
        run("sync", &["-f", self.point.to_str().unwrap()]);
    }
    fn copy_tree(&mut self, source: &str) {
        run("cp", &["-a", source, self.point.to_str().unwrap()]);
    }
    fn begin_big(&mut self) {
        let path = self.point.join("big");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path);
        self.big = Some(file.unwrap());
    }
    fn write_big(&mut self, offset: u64, data: &[u8]) {
        self.big
            .as_ref()
            .unwrap()
            .write_all_at(data, offset)
            .unwrap();
    }
    fn read_big(&mut self, offset: u64, data: &mut [u8]) {
        self.big
            .as_ref()
            .unwrap()
            .read_exact_at(data, offset)
            .unwrap();
    }
    fn end(&mut self) {
        self.big = None;
        (self.remount)(Mount::Off);
    }
}

/// The library, in this process.
struct Library {
    image: PathBuf,
    fs: Option<Filesystem>,
    dirs: Vec<InodeId>,
    big: Option<Arc<butterfs_fs::Inode>>,
}

impl Library {
    fn fs(&self) -> &Filesystem {
        self.fs.as_ref().unwrap()
    }
    fn open(&mut self) {
        let device = FileDevice::open(&self.image, Access::ReadWrite).unwrap();
        let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
        self.fs = Some(Filesystem::new(
            Arc::new(store),
            TreeId::FS,
            Options::default(),
        ));
    }
}

fn name(file: usize) -> String {
    format!("f{file}")
}

impl Target for Library {
    fn name(&self) -> &'static str {
        "library"
    }
    fn cold(&mut self) {
        self.sync();
        let big = self.big.take().map(|big| big.id);
        self.fs = None;
        self.open();
        self.big = big.map(|id| self.fs().inode(id).unwrap());
    }
    fn mkdir(&mut self, dir: usize) {
        let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
        let made = self
            .fs()
            .create(self.fs().root(), format!("d{dir}").as_bytes(), &new);
        self.dirs.push(made.unwrap().id);
    }
    fn create(&mut self, dir: usize, file: usize, data: &[u8]) {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        let inode = self
            .fs()
            .create(self.dirs[dir], name(file).as_bytes(), &new)
            .unwrap();
        if !data.is_empty() {
            self.fs().write(&inode, 0, data).unwrap();
        }
    }
    fn stat(&mut self, dir: usize, file: usize) {
        let found = self
            .fs()
            .lookup(self.dirs[dir], name(file).as_bytes())
            .unwrap();
        self.fs().attributes(found.inode).unwrap();
    }
    fn unlink(&mut self, dir: usize, file: usize) {
        self.fs()
            .unlink(self.dirs[dir], name(file).as_bytes())
            .unwrap();
    }
    fn sync(&mut self) {
        self.fs().sync_all().unwrap();
    }
    fn copy_tree(&mut self, source: &str) {
        self.fs = None;
        let target = format!("{}:/", self.image.display());
        run(&program(), &["copy", "-q", source, &target]);
        self.open();
    }
    fn begin_big(&mut self) {
        let new = NewInode::new(S_IFREG | 0o644, Owner::default());
        self.big = Some(self.fs().create(self.fs().root(), b"big", &new).unwrap());
    }
    fn write_big(&mut self, offset: u64, data: &[u8]) {
        let big = self.big.clone().unwrap();
        assert_eq!(self.fs().write(&big, offset, data).unwrap(), data.len());
    }
    fn read_big(&mut self, offset: u64, data: &mut [u8]) {
        let big = self.big.clone().unwrap();
        assert_eq!(self.fs().read(&big, offset, data).unwrap(), data.len());
    }
    fn end(&mut self) {
        self.big = None;
        self.fs = None;
    }
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

fn drop_caches() {
    run("sync", &[]);
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// CPU seconds of this process, its children and (for FUSE) the server are
/// part of the whole machine's: what /proc/stat counts as busy.
fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap())
        .collect();
    let idle = fields[3] + fields[4];
    (fields.iter().take(8).sum::<f64>() - idle) / 100.0
}

struct Figure {
    step: &'static str,
    unit: &'static str,
    rate: f64,
    cpu: f64,
}

fn measure(target: &mut dyn Target, scale: Scale) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut step = |name, unit, amount: usize, work: &mut dyn FnMut()| {
        let cpu = busy_seconds();
        let start = Instant::now();
        work();
        let seconds = start.elapsed().as_secs_f64();
        let figure = Figure {
            step: name,
            unit,
            rate: amount as f64 / seconds,
            cpu: busy_seconds() - cpu,
        };
        eprintln!("  {name}: {:.0} {unit}/s", figure.rate);
        figures.push(figure);
    };
    let per_dir = scale.files / DIRS;
    let all = || (0..DIRS).flat_map(move |dir| (0..per_dir).map(move |file| (dir, file)));
    for dir in 0..DIRS {
        target.mkdir(dir);
    }
    step("create", "files", scale.files, &mut || {
        all().for_each(|(dir, file)| target.create(dir, file, &[]));
        target.sync();
    });
    target.cold();
    step("stat, cold", "files", scale.files, &mut || {
        all().for_each(|(dir, file)| target.stat(dir, file));
    });
    step("unlink", "files", scale.files, &mut || {
        all().for_each(|(dir, file)| target.unlink(dir, file));
        target.sync();
    });
    let noise = noise();
    step("create + 4 KiB", "files", scale.files, &mut || {
        all().for_each(|(dir, file)| target.create(dir, file, &noise[..4096]));
        target.sync();
    });
    all().for_each(|(dir, file)| target.unlink(dir, file));
    target.sync();
    let bytes = tree_bytes(Path::new(TREE)) as usize / MIB;
    step("copy of /usr/share", "MiB", bytes, &mut || {
        target.copy_tree(TREE);
        target.sync();
    });
    target.begin_big();
    step("write 1 MiB", "MiB", scale.mib, &mut || {
        for at in 0..scale.mib {
            target.write_big((at * MIB) as u64, &noise);
        }
        target.sync();
    });
    target.cold();
    let mut buffer = vec![0; MIB];
    step("read 1 MiB, cold", "MiB", scale.mib, &mut || {
        for at in 0..scale.mib {
            target.read_big((at * MIB) as u64, &mut buffer);
            assert!(buffer[..64] == noise[..64]);
        }
    });
    target.cold();
    let mut seed = 1_u64;
    step("read 4 KiB, random", "reads", RANDOM_READS, &mut || {
        for _ in 0..RANDOM_READS {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % (scale.mib * 256);
            target.read_big((at * 4096) as u64, &mut buffer[..4096]);
        }
    });
    figures
}

/// Bytes of the files below `root`.
fn tree_bytes(root: &Path) -> u64 {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(of) if of.is_dir() => tree_bytes(&entry.path()),
            Ok(of) if of.is_file() => of.len(),
            _ => 0,
        })
        .sum()
}

/// A MiB that does not compress.
fn noise() -> Vec<u8> {
    let mut seed = 9_u64;
    (0..MIB)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(7);
            (seed >> 56) as u8
        })
        .collect()
}

fn image(work: &Path, name: &str, scale: Scale) -> PathBuf {
    let path = work.join(name);
    let _ = fs::remove_file(&path);
    let size = (scale.mib as u64 + 4096) * MIB as u64;
    let device = FileDevice::create(&path, size).unwrap();
    make(&device, &MkfsOptions::default()).unwrap();
    path
}

fn mounted(work: &Path, name: &'static str, scale: Scale, fuse: Option<&str>) -> Mounted {
    let image = image(work, "volume.img", scale);
    let point = work.join("mnt");
    fs::create_dir_all(&point).unwrap();
    let butterfs = fuse.map(str::to_owned);
    let remount = {
        let point = point.to_str().unwrap().to_owned();
        let image = image.to_str().unwrap().to_owned();
        Box::new(move |what: Mount| match (what, &butterfs) {
            (Mount::On, Some(program)) => run(program, &["mount", &image, &point]),
            (Mount::Off, Some(program)) => run(program, &["umount", &point]),
            (Mount::On, None) => run("mount", &["-o", "loop", &image, &point]),
            (Mount::Off, None) => run("umount", &[&point]),
        })
    };
    remount(Mount::On);
    Mounted {
        name,
        point,
        remount,
        big: None,
    }
}

/// The tool that is measured.
fn program() -> String {
    std::env::var("BUTTERFS").unwrap_or_else(|_| "butterfs".into())
}

/// Greatest memory of the server of the volume in `image`.
fn server_peak(image: &Path) -> f64 {
    let wanted = image.to_str().unwrap();
    let found = fs::read_dir("/proc").unwrap().flatten().find(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("--ready") && line.contains(wanted)
    });
    found.map_or(0.0, |process| {
        peak_memory_mib(process.file_name().to_str().unwrap())
    })
}

fn peak_memory_mib(process: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize, default| {
        arguments
            .get(at)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let base = if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    };
    if arguments.get(1).is_some_and(|word| word == "fsync") {
        return fsync::measure(Path::new(base), number(2, 5) as u64);
    }
    if arguments.get(1).is_some_and(|word| word == "open") {
        return open::measure(Path::new(base), number(2, 10_000_000));
    }
    let scale = Scale {
        files: number(1, 200_000),
        mib: number(2, 4096),
    };
    let work = PathBuf::from(base).join(format!("butterfs-bench-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    eprintln!("kernel btrfs");
    let mut kernel = mounted(&work, "kernel", scale, None);
    let reference = measure(&mut kernel, scale);
    kernel.end();
    let mut library = Library {
        image: image(&work, "volume.img", scale),
        fs: None,
        dirs: Vec::new(),
        big: None,
    };
    library.open();
    eprintln!("ButterFS, library");
    let mut columns = vec![(library.name(), measure(&mut library, scale))];
    library.end();
    let peak = peak_memory_mib("self");
    let program = program();
    let mut server = 0.0;
    if Path::new("/dev/fuse").exists() && std::env::var_os("NO_FUSE").is_none() {
        eprintln!("ButterFS over FUSE");
        let mut fuse = mounted(&work, "fuse", scale, Some(&program));
        let figures = measure(&mut fuse, scale);
        server = server_peak(&work.join("volume.img"));
        fuse.end();
        columns.push((fuse.name(), figures));
    }
    fs::remove_dir_all(&work)?;
    println!(
        "| step | {} rate | CPU s | {} |",
        kernel.name(),
        columns
            .iter()
            .map(|(name, _)| format!("{name} | ratio | CPU s"))
            .collect::<Vec<_>>()
            .join(" | ")
    );
    println!("|---|{}", "---|".repeat(2 + 3 * columns.len()));
    for (at, figure) in reference.iter().enumerate() {
        print!(
            "| {} | {:.0} {}/s | {:.1} |",
            figure.step, figure.rate, figure.unit, figure.cpu
        );
        for (_, column) in &columns {
            let own = &column[at];
            print!(
                " {:.0} | {:.2} | {:.1} |",
                own.rate,
                own.rate / figure.rate,
                own.cpu
            );
        }
        println!();
    }
    println!(
        "\nPeak memory: {peak:.0} MiB of the library's process, {server:.0} MiB of the FUSE server since its last mount"
    );
    Ok(())
}
