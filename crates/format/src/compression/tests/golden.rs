//! Extents that Linux 6.18 wrote, with `compress-force` and each level, whole
//! with the padding of their last sector; inline ones as they lie in the leaf.
//! Files: `words` and `inline` of 45,000 and 1,500 bytes are words, `mixed` of
//! 24,000 bytes is half noise, `zeros` is a whole unit.

use super::{SECTOR, Scratch, content};
use crate::compression::Algorithm;

macro_rules! golden {
    ($($file:literal $algorithm:ident,)*) => {
        [$((
            $file,
            &include_bytes!(concat!("../../../testdata/", $file, ".bin"))[..],
            Algorithm::$algorithm,
        ),)*]
    };
}

#[test]
fn extents_of_the_kernel() {
    let mut scratch = Scratch::default();
    for (file, extent, algorithm) in golden! {
        "words-zlib1" Zlib,
        "words-zlib9" Zlib,
        "words-lzo" Lzo,
        "words-zstd-10" Zstd,
        "words-zstd3" Zstd,
        "words-zstd15" Zstd,
        "mixed-zlib1" Zlib,
        "mixed-lzo" Lzo,
        "mixed-zstd3" Zstd,
        "mixed-zstd15" Zstd,
        "zeros-zlib1" Zlib,
        "zeros-lzo" Lzo,
        "zeros-zstd3" Zstd,
        "inline-zlib1" Zlib,
        "inline-zlib9" Zlib,
        "inline-lzo" Lzo,
        "inline-zstd-10" Zstd,
        "inline-zstd3" Zstd,
        "inline-zstd15" Zstd,
    } {
        let kind = file.split('-').next().unwrap();
        let (expected, extent_size) = match kind {
            "words" => (content(3, 7, 45_000), 45_056),
            "mixed" => (content(5, 8, 24_000), 24_576),
            "zeros" => (content(0, 0, 131_072), 131_072),
            _ => (content(3, 9, 1500), 1500),
        };
        if kind != "inline" {
            assert_eq!(extent.len() % SECTOR, 0);
        }
        let mut output = vec![0; extent_size];
        let filled = scratch
            .decompress(algorithm, extent, &mut output, SECTOR)
            .unwrap();
        // The kernel compresses up to the end of the file, or up to the end
        // of its last sector; what is missing is zero.
        assert!((expected.len()..=extent_size).contains(&filled), "{file}");
        assert!(output[..expected.len()] == expected, "{file}");
        assert!(output[expected.len()..].iter().all(|byte| *byte == 0));
        if algorithm == Algorithm::Lzo {
            // Our encoder needs no more sectors than the kernel's.
            let level = algorithm.default_level();
            let mut packed = vec![0; extent.len()];
            let ours = scratch.compress(algorithm, level, &expected, &mut packed, SECTOR);
            assert!(ours.is_some(), "{file}");
        }
    }
}
