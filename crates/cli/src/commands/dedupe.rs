//! `butterfs dedupe`: makes files share what they have in common.
//!
//! Owns the arguments, the pieces in which ranges are compared, and who is
//! asked: the library if the volume is not mounted, otherwise the kernel or the
//! server of the mount. Only what was compared at that moment is shared.

use super::subvolume::site::{Site, open_volume, unseen};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use crate::sizes;
use butterfs::{Deduped, Inode, Volume};
use butterfs_kernel::butterfs_mount as own;
use butterfs_kernel::{self as btrfs, DedupeRequest};
use clap::Args;
use rustix::io::Errno;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes compared and shared at a time: files are locked meanwhile.
const PIECE: u64 = 16 << 20;

/// Shares with each destination what it has in common with the source, byte by
/// byte, in the range that is named or from their beginnings on. Ranges begin
/// with a sector (4 KiB mostly) and lie within the files; a cut sector is shared
/// only where both files end in it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs dedupe disk.img:/a disk.img:/b disk.img:/c
  butterfs dedupe --range 1m:64k:0 mnt/a mnt/b

Exit code 0 also where ranges differ; the output says which.")]
pub struct Dedupe {
    /// A range: its offset in the source, its length (0: as far as both files
    /// go) and its offset in the destinations.
    #[arg(long, value_name = "SOURCE_OFFSET:LENGTH:DEST_OFFSET", value_parser = Span::parse)]
    range: Vec<Span>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The file that keeps its extents: VOLUME:/path or a path on a mount.
    source: OsString,
    /// The files that get them, on the same volume.
    #[arg(required = true)]
    destinations: Vec<OsString>,
}

/// A range, as it is named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: u64,
    pub length: u64,
    pub to: u64,
}

impl Span {
    /// `4k:1m:0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let [from, length, to] = parts[..] else {
            return Err("write SOURCE_OFFSET:LENGTH:DEST_OFFSET, such as 0:1m:4k".into());
        };
        Ok(Self {
            from: sizes::parse(from)?,
            length: sizes::parse(length)?,
            to: sizes::parse(to)?,
        })
    }

    /// This range, as far as both files go if no length is named.
    fn within(self, source: u64, destination: u64) -> Self {
        let left = source
            .saturating_sub(self.from)
            .min(destination.saturating_sub(self.to));
        let length = if self.length == 0 { left } else { self.length };
        Self { length, ..self }
    }
}

/// What became of a range.
#[derive(Serialize)]
struct Outcome {
    destination: String,
    source_offset: u64,
    destination_offset: u64,
    length: u64,
    /// Bytes that are shared now.
    deduped: u64,
    /// The first piece that differs begins here, relative to the range; what
    /// comes after it was not looked at.
    differs_at: Option<u64>,
}

/// Shares a range piece by piece.
fn in_pieces(
    span: Span,
    share: &mut dyn FnMut(Span) -> Result<Deduped, Failure>,
) -> Result<(u64, Option<u64>), Failure> {
    let mut deduped = 0;
    let mut at = 0;
    while at < span.length {
        let piece = Span {
            from: span.from.saturating_add(at),
            length: (span.length - at).min(PIECE),
            to: span.to.saturating_add(at),
        };
        match share(piece)? {
            Deduped::Differs => return Ok((deduped, Some(at))),
            Deduped::Shared(bytes) => deduped += bytes,
        }
        at += piece.length;
    }
    Ok((deduped, None))
}

impl Dedupe {
    /// Runs it.
    pub fn run(self) -> Done {
        let outcomes = match Site::parse(&self.source) {
            Site::Unmounted(place) => {
                let volume = open_volume(&place.volume)?;
                let done = self.in_volume(&volume, &place.volume);
                volume.close().context(place.volume.display())?;
                done?
            }
            Site::Mounted(path) => self.on_mount(&path)?,
        };
        if self.json {
            return json(&outcomes);
        }
        for outcome in &outcomes {
            let end = match outcome.differs_at {
                Some(at) => format!(", then differs within {PIECE} bytes of {at}"),
                None => String::new(),
            };
            say!(
                "{}: {} of {} bytes shared{end}",
                outcome.destination,
                outcome.deduped,
                outcome.length
            );
        }
        Ok(())
    }

    fn spans(&self) -> Vec<Span> {
        let whole = Span {
            from: 0,
            length: 0,
            to: 0,
        };
        if self.range.is_empty() {
            vec![whole]
        } else {
            self.range.clone()
        }
    }

    fn each(
        &self,
        destination: &OsString,
        (source_size, size): (u64, u64),
        share: &mut dyn FnMut(Span) -> Result<Deduped, Failure>,
        outcomes: &mut Vec<Outcome>,
    ) -> Done {
        for span in self.spans() {
            let span = span.within(source_size, size);
            let (deduped, differs_at) =
                in_pieces(span, share).map_err(|failure| failure.at(destination.display()))?;
            outcomes.push(Outcome {
                destination: destination.display().to_string(),
                source_offset: span.from,
                destination_offset: span.to,
                length: span.length,
                deduped,
                differs_at,
            });
        }
        Ok(())
    }

    fn in_volume(&self, volume: &Volume, path: &Path) -> Result<Vec<Outcome>, Failure> {
        let open = |word: &OsString| -> Result<Arc<Inode>, Failure> {
            match Site::parse(word) {
                Site::Unmounted(place) if same_file(&place.volume, path) => {
                    let id = volume.resolve(place.path.as_bytes()).context(&place)?;
                    volume.files().inode(id).context(place)
                }
                _ => fail(format!(
                    "{}: is not on {}; files share data within one volume",
                    word.display(),
                    path.display()
                )),
            }
        };
        let source = open(&self.source)?;
        let mut outcomes = Vec::new();
        for destination in &self.destinations {
            let target = open(destination)?;
            let size = |inode: &Inode| -> Result<u64, Failure> {
                Ok(volume.files().attributes_of(inode)?.size)
            };
            let sizes = (size(&source)?, size(&target)?);
            let mut share = |piece: Span| {
                let targets = [(Arc::clone(&target), piece.to)];
                let from = (&source, piece.from);
                let mut results = volume.files().dedupe_range(from, piece.length, &targets);
                Ok(results.pop().unwrap_or(Ok(Deduped::Shared(0)))?)
            };
            self.each(destination, sizes, &mut share, &mut outcomes)?;
        }
        Ok(outcomes)
    }

    fn on_mount(&self, path: &Path) -> Result<Vec<Outcome>, Failure> {
        let source = crate::host_file::open(path).context(path.display())?;
        // Data that are only in this kernel's page cache would not be compared
        // on the other side.
        source.sync_data().context(path.display())?;
        let mut outcomes = Vec::new();
        for destination in &self.destinations {
            let place = destination.display();
            let target = File::options().read(true).write(true).open(destination);
            let target = target.context(&place)?;
            target.sync_data().context(&place)?;
            let size = |file: &File| file.metadata().map(|facts| facts.len());
            let sizes = (size(&source)?, size(&target).context(&place)?);
            let mut share = |piece: Span| {
                let done = dedupe_open(&source, &target, piece)
                    .map_err(|error| unseen(path, error).map_or_else(|| said(error), Failure))?;
                Ok(match done {
                    btrfs::Deduped::Shared(bytes) => Deduped::Shared(bytes),
                    btrfs::Deduped::Differs => Deduped::Differs,
                })
            };
            self.each(destination, sizes, &mut share, &mut outcomes)?;
        }
        Ok(outcomes)
    }
}

/// Shares a range of two open files. On a mount of ButterFS, which
/// FIDEDUPERANGE does not reach, asks its server; otherwise asks the kernel.
pub fn dedupe_open(source: &File, target: &File, span: Span) -> Result<btrfs::Deduped, Errno> {
    let request = DedupeRequest {
        source: source.as_fd(),
        source_offset: span.from,
        length: span.length,
        target: target.as_fd(),
        target_offset: span.to,
    };
    if own::is_butterfs(source.as_fd()) {
        own::dedupe(request)
    } else {
        btrfs::dedupe_range(request)
    }
}

/// Whether two paths are one file.
pub fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    one == other || (real(one).is_some() && real(one) == real(other))
}

/// An error of the file system, in words.
fn said(error: Errno) -> Failure {
    Failure(match error {
        Errno::NOTTY | Errno::OPNOTSUPP => "this file system cannot share data".into(),
        Errno::INVAL => {
            "ranges begin with a sector, lie within their files and do not overlap; both files have data checksums, or none (chattr +C)".into()
        }
        Errno::XDEV => "the files are on different volumes".into(),
        other => std::io::Error::from(other).to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let span = Span::parse("4k:1m:0").expect("a range");
        assert_eq!((span.from, span.length, span.to), (4096, 1 << 20, 0));
        assert!(Span::parse("1:2").is_err());
        assert!(Span::parse("a:2:3").is_err());
        let whole = Span::parse("4096:0:0").expect("a range");
        assert_eq!(whole.within(10_000, 5000).length, 5000);
        assert_eq!(whole.within(100, 5000).length, 0);
    }

    #[test]
    fn a_difference_ends_a_range() {
        let span = Span::parse("0:40m:0").expect("a range");
        let mut seen = Vec::new();
        let mut share = |piece: Span| {
            seen.push(piece.length >> 20);
            Ok(match seen.len() {
                1 => Deduped::Shared(piece.length),
                _ => Deduped::Differs,
            })
        };
        let done = in_pieces(span, &mut share).expect("no error");
        assert_eq!(done, (16 << 20, Some(16 << 20)));
        assert_eq!(seen, [16, 16]);
    }
}
