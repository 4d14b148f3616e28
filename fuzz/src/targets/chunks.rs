//! Chunk maps: building, checking against devices, mapping; and the placement
//! of new chunks among hostile ones.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use butterfs_volume::ChunkMap;
use butterfs_volume::placement::{DeviceSpace, plan, possible};

/// A number that lies near where something may break.
fn number(tape: &mut Tape<'_>) -> u64 {
    match tape.u8() {
        0 => tape.u64(),
        1 => u64::MAX - u64::from(tape.u16()),
        2 => u64::MAX - (u64::from(tape.u16()) << 12),
        3 => 1 << (tape.u8() & 63),
        _ => u64::from(tape.u16()) << 16,
    }
}

fn chunk(tape: &mut Tape<'_>) -> Chunk {
    let flags = match tape.u8() {
        0 => tape.u64(),
        pick => u64::from(pick) | u64::from(tape.u8() & 7) << 8,
    };
    let usual = tape.u8();
    let odd = |bit: u8| usual & (1 << bit) != 0;
    let stripe_length = if odd(0) { number(tape) } else { 65536 };
    let sector_size = if odd(1) { tape.u32() } else { 4096 };
    Chunk {
        length: number(tape),
        owner: 2,
        stripe_length,
        flags: BlockGroupFlags(flags),
        io_align: 65536,
        io_width: 65536,
        sector_size,
        sub_stripes: if odd(2) { tape.u16() } else { 2 },
        stripes: (0..tape.u8() & 15)
            .map(|_| Stripe {
                device: DeviceId(u64::from(tape.u8() & 3)),
                offset: DeviceOffset(number(tape)),
                device_uuid: [0; 16],
            })
            .collect(),
    }
}

/// Chunks, device sizes, addresses.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || {
        let mut tape = Tape::new(data);
        let mut map = ChunkMap::default();
        let sizes = [number(&mut tape), number(&mut tape)];
        for _ in 0..tape.u8() & 31 {
            let (logical, chunk) = (Logical(number(&mut tape)), chunk(&mut tape));
            let bytes = chunk.encode();
            // Only what has a stripe can be parsed.
            assert_eq!(Chunk::parse(&bytes).is_ok(), !chunk.stripes.is_empty());
            let _ = map.insert(logical, chunk);
        }
        let _ = map.check_devices(|id| sizes.get(usize::try_from(id.get()).ok()?).copied());
        let all: Vec<(Logical, Chunk)> = map.iter().map(|(at, c)| (at, c.clone())).collect();
        for (at, chunk) in &all {
            let last = Logical(at.get() + (chunk.length - 1));
            for logical in [*at, last] {
                let found = map.find(logical).expect("a chunk covers its own bytes");
                assert_eq!(found.0, *at);
                let mapping = map.map(logical, u64::MAX).expect("it maps");
                assert!(mapping.length > 0 && !mapping.copies.is_empty());
                let _ = map.map_write(logical, number(&mut tape));
            }
        }
        while !tape.is_empty() {
            let (logical, length) = (Logical(number(&mut tape)), number(&mut tape));
            let _ = (map.map(logical, length), map.copies(logical));
        }
        place(&all, sizes);
    });
}

/// As the store sees the devices of such a map.
fn place(all: &[(Logical, Chunk)], sizes: [u64; 2]) {
    let spaces: Vec<DeviceSpace> = (0..2)
        .map(|id| {
            let mut allocated: Vec<_> = all
                .iter()
                .flat_map(|(_, chunk)| {
                    let own = chunk.stripes.iter().filter(move |s| s.device.get() == id);
                    own.map(|s| s.offset.get()..s.offset.get().saturating_add(chunk.length))
                })
                .collect();
            allocated.sort_by_key(|range| range.start);
            DeviceSpace {
                device: DeviceId(id),
                size: sizes[usize::from(id == 1)],
                allocated,
            }
        })
        .collect();
    for flags in [
        BlockGroupFlags::DATA,
        BlockGroupFlags::METADATA | BlockGroupFlags::DUP,
    ] {
        let possible = possible(flags, &spaces);
        if let Ok(plan) = plan(flags, &spaces) {
            assert!(plan.length > 0 && possible > 0);
        }
    }
}
