//! The features of a volume that follow from the compression of its data.

use butterfs_format::compression::Algorithm;
use butterfs_format::features::Incompat;
use butterfs_store::Engine;

/// Notes in the superblock that the volume needs readers who know `algorithm`.
/// Called behind the edit that makes it so.
pub(crate) fn note_compression(engine: &mut Engine, algorithm: Option<Algorithm>) {
    match algorithm {
        Some(Algorithm::Zstd) => engine.set_incompat(Incompat::COMPRESS_ZSTD),
        Some(Algorithm::Lzo) => engine.set_incompat(Incompat::COMPRESS_LZO),
        // Every reader knows it.
        Some(Algorithm::Zlib) | None => {}
    }
}
