//! What a directory holds, as one hash.

use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What a directory holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    /// Names, kinds, lengths and bytes.
    pub(crate) hash: String,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// Reads `keep` below a directory, or all of it if nothing is named.
pub(crate) fn content(directory: &Path, keep: &[PathBuf]) -> Result<Content, String> {
    let mut sum = Sha256::new();
    let mut found = Content::default();
    let mut buffer = vec![0; 1 << 20];
    let mut waiting: Vec<PathBuf> = if keep.is_empty() {
        vec![PathBuf::new()]
    } else {
        let mut keep = keep.to_vec();
        keep.sort_by(|a, b| b.cmp(a));
        keep
    };
    while let Some(name) = waiting.pop() {
        let path = directory.join(&name);
        let at = |error: std::io::Error| format!("{}: {error}", path.display());
        let meta = fs::symlink_metadata(&path).map_err(at)?;
        sum.update((name.as_os_str().len() as u64).to_le_bytes());
        sum.update(name.as_os_str().as_bytes());
        if meta.is_dir() {
            sum.update(b"d");
            let mut names = Vec::new();
            for entry in fs::read_dir(&path).map_err(at)? {
                names.push(name.join(entry.map_err(at)?.file_name()));
            }
            // The last name is popped first.
            names.sort_by(|a, b| b.cmp(a));
            waiting.extend(names);
        } else if meta.is_symlink() {
            sum.update(b"l");
            sum.update(fs::read_link(&path).map_err(at)?.as_os_str().as_bytes());
        } else if meta.is_file() {
            sum.update(b"f");
            sum.update(meta.len().to_le_bytes());
            found.files += 1;
            found.bytes += meta.len();
            let mut file = File::open(&path).map_err(at)?;
            loop {
                let count = file.read(&mut buffer).map_err(at)?;
                if count == 0 {
                    break;
                }
                sum.update(&buffer[..count]);
            }
        } else {
            sum.update(b"o");
        }
    }
    found.hash = sum
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_another_hash() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let hash = || content(folder.path(), &[]).unwrap();
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/a"), "content").unwrap();
        let first = hash();
        assert_eq!((first.files, first.bytes), (1, 7));
        assert_eq!(first, hash());
        let mut hashes = vec![first.hash];
        fs::write(path("d/a"), "Content").unwrap();
        hashes.push(hash().hash);
        fs::rename(path("d/a"), path("d/b")).unwrap();
        hashes.push(hash().hash);
        fs::write(path("d/b"), "Conten").unwrap();
        hashes.push(hash().hash);
        std::os::unix::fs::symlink("b", path("d/c")).unwrap();
        hashes.push(hash().hash);
        let kept = content(folder.path(), &["d/b".into()]).unwrap();
        assert_eq!(kept.bytes, 6);
        let count = hashes.len();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
