//! Chunk maps over two to four devices: building, checking against devices,
//! mapping, what stripes hold; and the placement of new chunks among hostile
//! ones.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use butterfs_volume::placement::{DeviceSpace, plan, possible, stranded};
use butterfs_volume::{ChunkMap, Profile, StripeLayout, StripeRole};

/// Bytes at the beginning of a chunk for which the content of stripes is
/// compared with the map.
const LOOKED_AT: u64 = 4 << 20;

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
        let sizes: Vec<u64> = (0..4).map(|_| number(&mut tape)).collect();
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
        for (at, chunk) in &all {
            stripes(*at, chunk, &map);
        }
        place(&all, &sizes);
    });
}

/// What the stripes of a chunk hold is what the map says of its bytes.
fn stripes(at: Logical, chunk: &Chunk, map: &ChunkMap) {
    for (index, stripe) in chunk.stripes.iter().enumerate() {
        let layout = StripeLayout::of(chunk, index).expect("the map took the chunk");
        let (part, within) = layout.rows(0..LOOKED_AT, LOOKED_AT);
        assert!(part.end <= layout.length() && within.end <= chunk.length);
        let mut next = within.start;
        layout.visit(within.start..within.end.min(LOOKED_AT), &mut |found| {
            assert_eq!(found.within.start, next);
            next = found.within.end;
            let logical = Logical(at.get() + found.within.start);
            let mapping = map.map(logical, 1).expect("it maps");
            if let StripeRole::Held { at } = found.role {
                let place = mapping.copies[layout.copy()];
                assert_eq!(place.device, stripe.device);
                assert_eq!(place.offset.get(), stripe.offset.get() + at);
            }
        });
    }
}

/// Plans new chunks on devices with such a map, as the store sees them.
fn place(all: &[(Logical, Chunk)], sizes: &[u64]) {
    let spaces: Vec<DeviceSpace> = (0..)
        .zip(sizes)
        .map(|(id, size)| {
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
                size: *size,
                allocated,
            }
        })
        .collect();
    for count in 2..=spaces.len() {
        let spaces = &spaces[..count];
        for profile in Profile::ALL {
            let flags = BlockGroupFlags::DATA | profile.flag();
            let possible = possible(flags, spaces);
            if let Ok(plan) = plan(flags, spaces) {
                assert!(plan.length > 0 && possible > 0, "{profile}");
            }
            // Many small chunks take long to plan.
            let total = spaces
                .iter()
                .fold(0_u64, |sum, of| sum.saturating_add(of.size));
            if total < 1 << 40 {
                for (device, bytes) in stranded(flags, spaces) {
                    let space = spaces.iter().find(|space| space.device == device);
                    assert!(space.is_some_and(|space| bytes <= space.unallocated()));
                }
            }
        }
    }
}
