//! An image of a real tree: `butterfs build` beside `mkfs.btrfs --rootdir`, in
//! turns, on files in memory.

use super::small::median;
use super::{program, tools::took};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// What the image is made of.
const TREE: &str = "/usr/share";
/// Bytes of the file that mkfs.btrfs fills; it does not grow one.
const FILE: u64 = 8 << 30;

/// Measures everything and prints it.
pub fn measure(base: &Path, repeats: usize) -> io::Result<()> {
    let work = base.join(format!("butterfs-images-{}", std::process::id()));
    fs::create_dir_all(&work)?;
    let image = work.join("image");
    let to = image.to_str().unwrap();
    let (mut theirs, mut own, mut packed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..repeats {
        File::create(&image)?.set_len(FILE)?;
        theirs.push(took("mkfs.btrfs", &["-q", "--rootdir", TREE, to]));
        let build = |more: &[&str]| {
            fs::remove_file(&image).unwrap();
            let words = [&["build", "-q", "-o", to, "--from", TREE], more].concat();
            let seconds = took(&program(), &words);
            took("btrfs", &["check", "--check-data-csum", to]);
            seconds
        };
        own.push(build(&[]));
        packed.push(build(&["--compress", "zstd"]));
        fs::remove_file(&image)?;
    }
    let theirs = median(theirs);
    println!("| an image of {TREE} | s | ratio |");
    println!("|---|---|---|");
    println!("| mkfs.btrfs --rootdir | {theirs:.2} | 1.00 |");
    for (name, took) in [
        ("butterfs build", own),
        ("the same, --compress zstd", packed),
    ] {
        let took = median(took);
        println!("| {name} | {took:.2} | {:.2} |", theirs / took);
    }
    fs::remove_dir_all(&work)
}
