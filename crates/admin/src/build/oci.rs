//! OCI image layouts: layers of archives with whiteouts.
//!
//! Owns finding the layers of an image, checking their digests, and applying
//! whiteouts: `.wh.NAME` removes NAME of the layers below, and `.wh..wh..opq`
//! removes all names of the layers below in its directory.

use super::BuildError;
use super::content::ContentId;
use super::source::Gathered;
use crate::archive::{self, Member, MemberKind};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Prefix of a whiteout; the name to remove follows.
const WHITEOUT: &[u8] = b".wh.";
/// The whiteout of all names of the layers below.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The greatest depth of indexes in indexes. More count as a circle.
const DEPTH_MAX: usize = 8;
/// The most bytes of an index or manifest.
const JSON_MAX: u64 = 16 << 20;

#[derive(Deserialize)]
struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// An index, which has manifests, or a manifest, which has layers.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// Lays the layers of an image over what was gathered.
pub(super) fn add(gathered: &mut Gathered, layout: &Path) -> Result<(), BuildError> {
    let layers = layers(layout)?;
    if layers.is_empty() {
        return Err(bad(layout, "its image has no layers"));
    }
    for (number, layer) in layers.iter().enumerate() {
        if number > 0 {
            gathered.layers.push(gathered.tree.clone());
        }
        let blob = blob(layout, layer)?;
        add_layer(gathered, &blob, &layer.digest)?;
    }
    Ok(())
}

fn bad(layout: &Path, reason: impl Into<String>) -> BuildError {
    BuildError::Layout {
        what: layout.display().to_string(),
        reason: reason.into(),
    }
}

/// Returns the layers of the image for this machine, the lowest first.
fn layers(layout: &Path) -> Result<Vec<Descriptor>, BuildError> {
    let mut document = parse(layout, &layout.join("index.json"), None)?;
    let mut level = Level::Tags;
    for _ in 0..DEPTH_MAX {
        if !document.layers.is_empty() || document.manifests.is_empty() {
            return Ok(document.layers);
        }
        let chosen = choose(layout, document.manifests, level)?;
        level = Level::Platforms;
        let path = blob(layout, &chosen)?;
        document = parse(layout, &path, Some(&chosen.digest))?;
    }
    Err(bad(layout, "its indexes name each other in a circle"))
}

/// Which index is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// That of the layout: it has an entry for each tag.
    Tags,
    /// One below: it has an entry for each platform, the best first.
    Platforms,
}

/// Returns the manifest for this machine.
fn choose(
    layout: &Path,
    manifests: Vec<Descriptor>,
    level: Level,
) -> Result<Descriptor, BuildError> {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let names: Vec<String> = manifests
        .iter()
        .filter_map(|one| one.platform.as_ref())
        .map(|platform| format!("{}/{}", platform.os, platform.architecture))
        .collect();
    let count = manifests.len();
    let mut fitting = manifests.into_iter().filter(|one| {
        let platform = one.platform.as_ref();
        count == 1 || platform.is_none_or(|p| p.os == "linux" && p.architecture == here)
    });
    let found = fitting.next();
    let is_other = |one: &Descriptor| found.as_ref().is_some_and(|it| it.digest != one.digest);
    let others = fitting.filter(is_other).count();
    if others > 0 && level == Level::Tags {
        return Err(bad(
            layout,
            format!(
                "{} of its images are for linux/{here}; copy the one that is meant to a layout of \
                 its own (skopeo copy oci:LAYOUT:TAG oci:OTHER)",
                others + 1
            ),
        ));
    }
    found.ok_or_else(|| {
        bad(
            layout,
            format!(
                "none of its images is for linux/{here}: {}",
                names.join(", ")
            ),
        )
    })
}

/// Returns the path of a blob.
fn blob(layout: &Path, descriptor: &Descriptor) -> Result<PathBuf, BuildError> {
    let hex = descriptor.digest.strip_prefix("sha256:");
    let is_digest = |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    match hex.filter(is_digest) {
        Some(hex) => Ok(layout.join("blobs/sha256").join(hex)),
        None => Err(bad(
            layout,
            format!(
                "the digest {} of a blob ({}) is not sha256",
                descriptor.digest, descriptor.media_type
            ),
        )),
    }
}

fn parse(layout: &Path, path: &Path, digest: Option<&str>) -> Result<Document, BuildError> {
    let io = || BuildError::io(path.display());
    let mut text = Vec::new();
    let file = File::open(path).map_err(io())?;
    file.take(JSON_MAX).read_to_end(&mut text).map_err(io())?;
    if let Some(digest) = digest {
        check(path, digest, &Sha256::digest(&text))?;
    }
    serde_json::from_slice(&text)
        .map_err(|error| bad(layout, format!("{}: {error}", path.display())))
}

fn check(path: &Path, digest: &str, found: &[u8]) -> Result<(), BuildError> {
    let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    if digest.strip_prefix("sha256:") == Some(&hex[..]) {
        return Ok(());
    }
    Err(BuildError::Digest {
        blob: path.display().to_string(),
    })
}

/// Computes the digest of what is read through it.
struct Digested<R> {
    inner: R,
    sum: Sha256,
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buf)?;
        self.sum.update(&buf[..count]);
        Ok(count)
    }
}

/// Reads a layer and lays it over what was gathered. Its whiteouts come first,
/// because they are only for the layers below, then its files.
fn add_layer(gathered: &mut Gathered, blob: &Path, digest: &str) -> Result<(), BuildError> {
    let io = || BuildError::io(blob.display());
    let mut input = Digested {
        inner: File::open(blob).map_err(io())?,
        sum: Sha256::new(),
    };
    let mut members: Vec<(Member, Option<ContentId>)> = Vec::new();
    let read = archive::decompressed(&mut input).map_err(BuildError::from);
    let read = read.and_then(|plain| {
        archive::read::<BuildError>(plain, &mut |found, content| {
            let member = match found {
                Ok(member) => member,
                Err(error) => return gathered.leave_out(error.into()),
            };
            let content = gathered.content_of(&member, content)?;
            members.push((member, content));
            Ok(())
        })
    });
    read.map_err(|error| error.of_archive(blob.display()))?;
    // Bytes after the end of the archive belong to the digest too.
    io::copy(&mut input, &mut io::sink()).map_err(io())?;
    check(blob, digest, &input.sum.finalize())?;
    let is_directory: HashMap<&[Vec<u8>], bool> = members
        .iter()
        .map(|(member, _)| (&member.path[..], member.kind == MemberKind::Directory))
        .collect();
    for (member, _) in &members {
        take_away(gathered, &member.path, &|path| {
            is_directory.get(path).copied()
        })?;
    }
    for (member, content) in members {
        if !is_whiteout(&member.path) {
            let added = gathered.add_member(member, content);
            added.or_else(|error| gathered.leave_out(error))?;
        }
    }
    Ok(())
}

fn is_whiteout(path: &[Vec<u8>]) -> bool {
    path.last().is_some_and(|name| name.starts_with(WHITEOUT))
}

/// Applies a whiteout; does nothing for other members. `of_layer` says whether
/// the whiteout's layer has a path, and then whether it is a directory there.
fn take_away(
    gathered: &mut Gathered,
    path: &[Vec<u8>],
    of_layer: &dyn Fn(&[Vec<u8>]) -> Option<bool>,
) -> Result<(), BuildError> {
    let Some((name, above)) = path.split_last() else {
        return Ok(());
    };
    let Some(hidden) = name.strip_prefix(WHITEOUT) else {
        return Ok(());
    };
    // If the layer replaces what is there, the files below are gone anyway; a
    // symbolic link of the layers below then leads elsewhere.
    let directory = gathered.tree.find_directory_below(above, of_layer)?;
    let Some(directory) = directory else {
        return Ok(());
    };
    if name == OPAQUE {
        gathered.tree.clear(directory);
    } else {
        gathered.tree.remove(directory, hidden);
    }
    Ok(())
}
