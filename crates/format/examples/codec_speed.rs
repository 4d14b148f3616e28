//! Speed of the codecs: `codec_speed FILE...`; one core, units of 128 KiB.

use butterfs_format::compression::{Method, Scratch, UNIT, heuristic};
use std::hint::black_box;
use std::time::Instant;

const SECTOR: usize = 4096;

fn main() {
    let mut data = Vec::new();
    for path in std::env::args_os().skip(1) {
        data.extend(std::fs::read(path).expect("the file can be read"));
    }
    assert!(!data.is_empty(), "name some files");
    let megabytes = data.len() as f64 / 1e6;
    let mut scratch = Scratch::default();
    println!("| codec | ratio | compress MB/s | decompress MB/s |\n|---|---|---|---|");
    let methods = [
        "lzo", "zlib:1", "zlib:3", "zlib:9", "zstd:-15", "zstd:-1", "zstd:1", "zstd:3", "zstd:9",
        "zstd:15",
    ];
    for name in methods {
        let method = Method::parse(name).flatten().expect("a method");
        let mut packed = Vec::new();
        let mut buffer = vec![0; 2 * UNIT];
        let start = Instant::now();
        for unit in data.chunks(UNIT) {
            let room = &mut buffer[..unit.len()];
            let length = scratch.compress(method.algorithm, method.level, unit, room, SECTOR);
            packed.push(length.map(|length| buffer[..length].to_vec()));
        }
        let compress = megabytes / start.elapsed().as_secs_f64();
        let mut bytes = 0;
        let mut plain = 0;
        let start = Instant::now();
        for (unit, packed) in data.chunks(UNIT).zip(&packed) {
            let Some(packed) = packed else { continue };
            plain += unit.len();
            bytes += packed.len();
            scratch
                .decompress(method.algorithm, packed, &mut buffer[..unit.len()], SECTOR)
                .expect("what was compressed");
            assert!(buffer[..unit.len()] == *unit);
        }
        let decompress = plain as f64 / 1e6 / start.elapsed().as_secs_f64();
        let ratio = plain as f64 / bytes as f64;
        println!("| {method} | {ratio:.2} | {compress:.0} | {decompress:.0} |");
    }
    let start = Instant::now();
    let yes = data
        .chunks(UNIT)
        .filter(|unit| black_box(heuristic::is_compressible(unit)));
    let yes = yes.count();
    let speed = megabytes / start.elapsed().as_secs_f64();
    println!(
        "heuristic: {speed:.0} MB/s, {yes} of {} units",
        data.chunks(UNIT).count()
    );
}
