//! Streams of the kernel, and damaged ones.

use super::*;

const GOLDEN: [(&str, &[u8]); 4] = [
    (
        "incremental v1",
        include_bytes!("golden/incremental-v1.stream"),
    ),
    (
        "incremental v2",
        include_bytes!("golden/incremental-v2.stream"),
    ),
    ("full v2", include_bytes!("golden/full-v2.stream")),
    ("no data", include_bytes!("golden/no-data-v1.stream")),
];

/// Gives every command to `visit`, with its bytes.
fn for_each(
    stream: &[u8],
    visit: &mut dyn FnMut(Version, &Command<'_>, &[u8]),
) -> Result<(), StreamFault> {
    let (header, mut rest) = stream
        .split_first_chunk::<HEADER_SIZE>()
        .ok_or(StreamFault::NoStream)?;
    let version = Version::parse_header(header)?;
    while !rest.is_empty() {
        let Some((header, after)) = rest.split_first_chunk::<{ CommandHeader::SIZE }>() else {
            return Err(StreamFault::NoStream);
        };
        let header = CommandHeader::parse(header, version)?;
        let Some((body, after)) = after.split_at_checked(header.length) else {
            return Err(StreamFault::NoStream);
        };
        let command = header.command(body)?;
        visit(
            version,
            &command,
            &rest[..CommandHeader::SIZE + header.length],
        );
        rest = after;
    }
    Ok(())
}

#[test]
fn the_kernels_streams_parse_and_encode_to_the_same_bytes() {
    for (name, stream) in GOLDEN {
        let mut kinds = Vec::new();
        let mut again = Vec::new();
        for_each(stream, &mut |version, command, bytes| {
            if again.is_empty() {
                again.extend_from_slice(&version.header());
            }
            let start = again.len();
            Encoder::new(version).encode(command, &mut again).unwrap();
            assert_eq!(&again[start..], bytes, "{name}: {command:?}");
            kinds.push(command.kind());
        })
        .unwrap_or_else(|fault| panic!("{name}: {fault}"));
        assert_eq!(again, stream, "{name}");
        assert_eq!(kinds.last(), Some(&CommandKind::End), "{name}");
    }
}

#[test]
fn values_are_those_that_the_kernel_wrote() {
    let mut seen = 0;
    for_each(GOLDEN[2].1, &mut |version, command, _| {
        assert_eq!(version, Version::Two);
        match command {
            Command::Subvolume { path, stamp } => {
                assert_eq!((*path, stamp.ctransid.get()), (&b"s1"[..], 8));
                assert_eq!(stamp.uuid[..4], [0x64, 0x50, 0x2c, 0x01]);
                seen += 1;
            }
            Command::EncodedWrite(write) if write.path == b"comp" => {
                assert_eq!((write.file_length, write.length), (20_000, 20_480));
                let encoding = write.compression.unwrap();
                assert_eq!(encoding.algorithm, crate::compression::Algorithm::Zstd);
                assert_eq!(write.data.len(), 4096);
                seen += 1;
            }
            Command::MakeSpecial {
                kind, mode, rdev, ..
            } if *kind == Special::Node => {
                assert_eq!((*mode, *rdev), (0o020_644, 0x103));
                seen += 1;
            }
            Command::Times { path, times } if *path == b"hard" => {
                assert_eq!(times.mtime.seconds, 1_000_000_000);
                seen += 1;
            }
            _ => {}
        }
    })
    .unwrap();
    assert_eq!(seen, 4);
}

#[test]
fn every_damaged_bit_and_every_cut_is_noticed() {
    for (name, stream) in GOLDEN {
        let whole = stream.len();
        for cut in 0..whole {
            let result = for_each(&stream[..cut], &mut |_, _, _| {});
            let mut last = None;
            let _ = for_each(&stream[..cut], &mut |_, command, _| {
                last = Some(command.kind())
            });
            assert!(
                result.is_err() || last != Some(CommandKind::End),
                "{name} cut at {cut}"
            );
        }
        let mut damaged = stream.to_vec();
        let step = if whole > 4096 { 7 } else { 1 };
        for at in (HEADER_SIZE..whole).step_by(step) {
            for bit in [0, 3, 7] {
                damaged[at] ^= 1 << bit;
                assert!(
                    for_each(&damaged, &mut |_, _, _| {}).is_err(),
                    "{name}: bit {bit} of byte {at}"
                );
                damaged[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn wrong_values_under_a_right_checksum_are_faults() {
    let good = |command: Command<'_>| {
        let mut out = Version::Two.header().to_vec();
        Encoder::new(Version::Two)
            .encode(&command, &mut out)
            .unwrap();
        for_each(&out, &mut |_, _, _| {})
    };
    let paths: [&[u8]; 6] = [b"..", b"a/../b", b"/a", b"a/", b"a//b", b"a\0b"];
    for path in paths {
        let fault = good(Command::Unlink { path }).unwrap_err();
        assert!(matches!(fault, StreamFault::BadValue { .. }), "{fault}");
    }
    assert!(good(Command::Unlink { path: b"" }).is_err());
    let raw = |length: u16| {
        let path = vec![b'x'; usize::from(length)];
        let attribute = AttributeKind::Path.number().to_le_bytes();
        let body = [&attribute[..], &length.to_le_bytes(), &path].concat();
        let size = u32::try_from(body.len()).unwrap();
        let sum = CommandHeader::compute(size, CommandKind::Unlink, &body);
        let mut out = Version::Two.header().to_vec();
        out.extend(size.to_le_bytes());
        out.extend(CommandKind::Unlink.number().to_le_bytes());
        out.extend(sum.to_le_bytes());
        out.extend(body);
        for_each(&out, &mut |_, _, _| {})
    };
    assert!(raw(4095).is_ok() && raw(4096).is_err());
    // Nor is such a path written.
    for (length, fits) in [(4095, true), (4096, false)] {
        let path = &vec![b'x'; length];
        let encoded = Encoder::new(Version::Two).encode(&Command::Unlink { path }, &mut Vec::new());
        assert_eq!(encoded.is_ok(), fits, "{length}");
    }
    assert!(
        good(Command::Chmod {
            path: b"",
            mode: 0o755
        })
        .is_ok()
    );
    let size = u64::MAX;
    assert!(good(Command::Truncate { path: b"a", size }).is_err());
    let offset = crate::FileOffset(u64::MAX - 1);
    let data = b"abc";
    let path = b"a";
    assert!(good(Command::Write { path, offset, data }).is_err());
}

#[test]
fn attributes_beyond_16_bits_are_only_data_of_version_2() {
    let data = vec![7; 100_000];
    let command = Command::Write {
        path: b"a",
        offset: crate::FileOffset(0),
        data: &data,
    };
    let mut out = Vec::new();
    assert!(
        Encoder::new(Version::One)
            .encode(&command, &mut out)
            .is_err()
    );
    assert!(out.is_empty());
    Encoder::new(Version::Two)
        .encode(&command, &mut out)
        .unwrap();
    let value = &data[..70_000];
    let command = Command::SetXattr {
        path: b"a",
        name: b"user.x",
        value,
    };
    assert!(
        Encoder::new(Version::Two)
            .encode(&command, &mut out)
            .is_err()
    );
}
