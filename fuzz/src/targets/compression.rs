//! Decoders of compressed extents, and their encoders.

use crate::meter::bounded;
use crate::tape::Tape;
use butterfs_format::compression::heuristic;
use butterfs_format::compression::{Algorithm, Method, Scratch, UNIT, room_that_pays};
use std::cell::RefCell;

thread_local! {
    /// Contexts are reused for each unit, as in the file layer: a bad unit must
    /// not spoil the next one.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Algorithm, size of the output, then the stream; the stream is also taken
/// as something to compress.
pub fn run(data: &[u8]) {
    bounded(32 << 20, || {
        let mut tape = Tape::new(data);
        let how = tape.u8();
        let algorithm = Algorithm::ALL[usize::from(how) % 3];
        let size = (usize::from(tape.u16()) << 1 | usize::from(how >> 7)).min(UNIT);
        let sector = 4096;
        SCRATCH.with_borrow_mut(|scratch| {
            let mut output = vec![0xa5; size];
            let decoded = scratch.decompress(algorithm, tape.rest(), &mut output, sector);
            if let Ok(filled) = decoded {
                assert!(filled <= size);
                assert!(output[filled..].iter().all(|byte| *byte == 0));
                // The same bytes give the same result in fresh contexts. Fresh
                // contexts may refuse a damaged frame that has more than its
                // header says: zstd decodes in another way when it has no
                // buffers yet.
                let mut other = vec![0; size];
                let fresh =
                    Scratch::default().decompress(algorithm, tape.rest(), &mut other, sector);
                match fresh {
                    Ok(again) => {
                        assert_eq!(again, filled);
                        assert!(output == other);
                    }
                    Err(error) => assert_eq!(algorithm, Algorithm::Zstd, "{error}"),
                }
            }
            round_trip(scratch, algorithm, tape.rest(), sector);
        });
    });
}

fn round_trip(scratch: &mut Scratch, algorithm: Algorithm, input: &[u8], sector: usize) {
    let input = &input[..input.len().min(UNIT)];
    let _ = (heuristic::is_compressible(input), heuristic::judge(input));
    let mut packed = vec![0; room_that_pays(input.len(), sector)];
    let level = Method::parse(algorithm.name())
        .flatten()
        .expect("a name")
        .level;
    if let Some(length) = scratch.compress(algorithm, level, input, &mut packed, sector) {
        let mut output = vec![0; input.len()];
        let filled = scratch.decompress(algorithm, &packed[..length], &mut output, sector);
        assert_eq!(filled, Ok(input.len()), "{}", algorithm.name());
        assert!(output == input, "{}", algorithm.name());
    }
}
