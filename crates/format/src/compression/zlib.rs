//! zlib streams (RFC 1950) as extents hold them: one stream from the first
//! byte on, zeros behind its end.

use super::{Algorithm, Level, bad};
use crate::ParseError;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Working memory: the two streams, the first with its level.
#[derive(Default)]
pub struct Zlib {
    deflate: Option<(u32, Compress)>,
    inflate: Option<Decompress>,
}

impl Zlib {
    /// Compresses `input` into `output`; `None` when it does not fit.
    pub fn compress(&mut self, level: Level, input: &[u8], output: &mut [u8]) -> Option<usize> {
        let wanted = u32::try_from(level.0).ok()?;
        let stream = match &mut self.deflate {
            Some((have, stream)) if *have == wanted => {
                stream.reset();
                stream
            }
            slot => {
                let stream = Compress::new(Compression::new(wanted), true);
                &mut slot.insert((wanted, stream)).1
            }
        };
        let status = stream.compress(input, output, FlushCompress::Finish);
        let length = usize::try_from(stream.total_out()).ok();
        if !matches!(status, Ok(Status::StreamEnd)) {
            // A reset of the compressor keeps a block open (level 1 of zlib-rs
            // 0.6.8), so the next stream would begin in the middle of this one.
            self.deflate = None;
            return None;
        }
        length
    }

    /// Decompresses `input` into `output`; gives how many bytes it filled.
    pub fn decompress(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, ParseError> {
        let stream = match &mut self.inflate {
            Some(stream) => {
                stream.reset(true);
                stream
            }
            slot => slot.insert(Decompress::new(true)),
        };
        let status = stream
            .decompress(input, output, FlushDecompress::Finish)
            .map_err(|error| bad(Algorithm::Zlib, error))?;
        let filled = usize::try_from(stream.total_out()).unwrap_or(output.len());
        if status != Status::StreamEnd && filled < output.len() {
            return Err(bad(Algorithm::Zlib, "the stream is cut short"));
        }
        Ok(filled)
    }
}
