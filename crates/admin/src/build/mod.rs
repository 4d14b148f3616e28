//! Building an image from files, in one pass and without mounting it.
//!
//! Owns the way from directories, archives and OCI layouts to a volume in a
//! file. Files are gathered into a tree ([`Gathered`]). Their content is written
//! from the beginning of the image on. Then all other trees are planned at once
//! and written behind the content. So an image has no gaps, and the same files
//! and options make the same bytes: nothing depends on the order in which a host
//! lists its files, on its holes, on access times or on threads.
//!
//! An image is an ordinary volume of generation 1, like one that was just made.

mod content;
mod data;
mod error;
mod items;
mod model;
mod oci;
mod owners;
mod plan;
mod source;
mod space;
mod subvolumes;

pub use content::{ContentId, Contents};
pub use error::BuildError;
pub use model::{Body, FileTree, Metadata, Node, NodeId};
pub use owners::{OwnerMap, OwnerRange};
pub use source::{Gathered, OnUnreadable, Source};
pub use space::Copies;
pub use subvolumes::{Protection, SubvolumeSpec};

use butterfs_format::compression::Method;
use butterfs_format::item::inode::Timespec;
use butterfs_format::{ChecksumType, TreeId, UuidBytes};
use data::{DataError, Keeping};
use items::ItemMaker;
use plan::Trees;
use space::Space;
use std::collections::BTreeMap;
use std::fs::File;
use subvolumes::{Plan, Wanted};

/// Bytes of a node.
const NODE_SIZE: u32 = 16384;

/// Options of an image.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Its label.
    pub label: String,
    /// UUID of the volume. If `None`, it comes from the seed or is random.
    pub uuid: Option<UuidBytes>,
    /// All other UUIDs are derived from this seed; random if `None`.
    pub seed: Option<String>,
    /// The time at which the image is made, for its items that need one.
    pub time: Timespec,
    /// Files that were changed later get this time.
    pub latest: Option<Timespec>,
    /// Compression of content, used for units that it makes smaller.
    pub compression: Option<Method>,
    /// Checksum of nodes and data.
    pub checksum: ChecksumType,
    /// Copies of metadata.
    pub copies: Copies,
    /// Size of the image in bytes; as small as possible if `None`.
    pub size: Option<u64>,
    /// Subvolumes to make.
    pub subvolumes: Vec<SubvolumeSpec>,
    /// Directory for a read-only snapshot after each layer; no snapshots if
    /// `None`.
    pub layers: Option<Vec<Vec<u8>>>,
}

/// What was built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// UUID of the volume.
    pub uuid: UuidBytes,
    /// Size of the image in bytes.
    pub total_bytes: u64,
    /// Bytes of data extents and nodes, without second copies.
    pub bytes_used: u64,
    /// Inodes of all subvolumes.
    pub inodes: u64,
    /// Subvolumes, including the top-level one.
    pub subvolumes: u64,
}

/// UUIDs of an image.
#[derive(Clone, Debug)]
struct Identities {
    fsid: UuidBytes,
    device: UuidBytes,
    chunk_tree: UuidBytes,
    subvolumes: BTreeMap<TreeId, UuidBytes>,
}

impl Identities {
    fn new(options: &BuildOptions, plan: &Plan) -> Self {
        let make = |what: &str| match &options.seed {
            None => uuid::Uuid::new_v4().into_bytes(),
            Some(seed) => derived(seed, what),
        };
        let subvolumes = plan.subvolumes.iter().map(|subvolume| {
            let tree = subvolume.tree;
            (tree, make(&format!("subvolume {}", tree.get())))
        });
        Self {
            fsid: options.uuid.unwrap_or_else(|| make("volume")),
            device: make("device"),
            chunk_tree: make("chunk tree"),
            subvolumes: subvolumes.collect(),
        }
    }
}

/// Derives a UUID from a seed.
fn derived(seed: &str, what: &str) -> UuidBytes {
    let text = format!("{what}\0{seed}");
    let sum = ChecksumType::Sha256.compute(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sum[..16]);
    uuid::Builder::from_random_bytes(bytes)
        .into_uuid()
        .into_bytes()
}

/// Called with the bytes of content that are done, and with the bytes of all
/// content.
pub type Watch<'w> = &'w mut dyn FnMut(u64, u64);

/// Writes an image of the gathered files into `image`, an empty file. Calls
/// `watch` with the progress.
///
/// Where the files were gathered to be left out if they cannot be taken
/// ([`Gathered::keep_going`]), content that cannot be read is left out, too.
///
/// # Errors
/// - [`BuildError::Io`] if content cannot be read or the image cannot be written.
/// - [`BuildError::Changed`] if a file became shorter meanwhile.
/// - [`BuildError::Path`] if a subvolume or the snapshots of layers cannot be put
///   where they should be.
/// - [`BuildError::AttributeTooLarge`] if an extended attribute fits in no node.
/// - [`BuildError::TooManyLinks`] if a file has more names than a volume holds.
/// - [`BuildError::TooSmall`] if the wanted size is too small.
pub fn build(
    gathered: &mut Gathered,
    options: &BuildOptions,
    image: &File,
    watch: Watch<'_>,
) -> Result<Built, BuildError> {
    if gathered.on_unreadable == OnUnreadable::Ends {
        return build_once(gathered, options, image, watch).map_err(|failed| failed.error);
    }
    gathered.leave_out_links();
    // Planning adds directories.
    let unplanned = gathered.tree.clone();
    // Each round leaves out at least one content.
    loop {
        let failed = match build_once(gathered, options, image, watch) {
            Ok(built) => return Ok(built),
            Err(failed) => failed,
        };
        let Some(content) = failed.content else {
            return Err(failed.error);
        };
        gathered.tree = unplanned.clone();
        gathered.leave_out_content(content, failed.error);
        image.set_len(0).map_err(BuildError::io("the image"))?;
    }
}

fn build_once(
    gathered: &mut Gathered,
    options: &BuildOptions,
    image: &File,
    watch: Watch<'_>,
) -> Result<Built, DataError> {
    let wanted = Wanted {
        specs: &options.subvolumes,
        layers: options.layers.as_deref(),
    };
    // Without snapshots of layers, the states after layers are not needed.
    let layers = match options.layers {
        Some(_) => &gathered.layers[..],
        None => &[],
    };
    let plan = subvolumes::plan(&mut gathered.tree, layers, &wanted)?;
    let (tree, contents) = (&gathered.tree, &gathered.contents);
    let mut space = Space::new(options.copies);
    let keeping = Keeping {
        method: options.compression,
        checksum: options.checksum,
    };
    let files = plan.contents(tree, layers);
    let data = data::write(image, contents, &mut space, keeping, (files, watch))?;
    let mut maker = ItemMaker {
        data: &data,
        contents,
        node_size: NODE_SIZE,
        latest: options.latest,
        refs: vec![Vec::new(); data.extents.len()],
    };
    let mut files = Vec::new();
    for subvolume in &plan.subvolumes {
        let of = Plan::files(subvolume, tree, layers);
        files.push((subvolume.tree, maker.subvolume(subvolume, of)?));
    }
    let refs = maker.refs;
    let ids = Identities::new(options, &plan);
    let trees = Trees {
        options,
        ids: &ids,
        plan: &plan,
        data: &data,
        refs,
        space,
    };
    let written = trees.write(image, files)?;
    Ok(Built {
        uuid: ids.fsid,
        total_bytes: written.total,
        bytes_used: written.used,
        inodes: plan
            .subvolumes
            .iter()
            .map(|subvolume| subvolume.inodes.len() as u64)
            .sum(),
        subvolumes: plan.subvolumes.len() as u64,
    })
}
