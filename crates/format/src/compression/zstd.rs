//! zstd frames (RFC 8878) as extents hold them: one frame from the first byte
//! on, zeros behind its end. No reader keeps a window beyond one unit.

use super::{Algorithm, Level, bad};
use crate::ParseError;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name,
};

/// Logarithm of the greatest window: 128 KiB.
const WINDOW_LOG: u32 = 17;
/// First bytes of a frame. The library knows older formats too, which Btrfs
/// never had.
const MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// The library fails if its output has only a few bytes more than it needs, so
/// it gets this many more.
const SLACK: usize = 1024;

/// Working memory: the two contexts, the first with its level, and a frame on
/// its way to the output.
#[derive(Default)]
pub struct Zstd {
    frame: Vec<u8>,
    compress: Option<(i32, CCtx<'static>)>,
    decompress: Option<DCtx<'static>>,
}

impl Zstd {
    /// Compresses `input` into `output`; `None` when it does not fit.
    pub fn compress(&mut self, level: Level, input: &[u8], output: &mut [u8]) -> Option<usize> {
        let context = match &mut self.compress {
            Some((have, context)) if *have == level.0 => context,
            slot => {
                let mut context = CCtx::try_create()?;
                context
                    .set_parameter(CParameter::CompressionLevel(level.0))
                    .ok()?;
                context
                    .set_parameter(CParameter::WindowLog(WINDOW_LOG))
                    .ok()?;
                &mut slot.insert((level.0, context)).1
            }
        };
        self.frame.resize(output.len().saturating_add(SLACK), 0);
        let length = context.compress2(&mut self.frame[..], input).ok()?;
        let frame = self.frame.get(..length)?;
        output.get_mut(..length)?.copy_from_slice(frame);
        Some(length)
    }

    /// Decompresses `input` into `output`; gives how many bytes it filled.
    pub fn decompress(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize, ParseError> {
        if !input.starts_with(&MAGIC) {
            return Err(bad(Algorithm::Zstd, "no frame begins here"));
        }
        let fail = |code| bad(Algorithm::Zstd, get_error_name(code));
        let context = match &mut self.decompress {
            Some(context) => {
                context.reset(ResetDirective::SessionOnly).map_err(fail)?;
                context
            }
            slot => {
                let mut context =
                    DCtx::try_create().ok_or_else(|| bad(Algorithm::Zstd, "no memory"))?;
                context
                    .set_parameter(DParameter::WindowLogMax(WINDOW_LOG))
                    .map_err(fail)?;
                slot.insert(context)
            }
        };
        let room = output.len();
        let mut from = InBuffer::around(input);
        let mut to = OutBuffer::around(output);
        loop {
            let before = (from.pos(), to.pos());
            let hint = context
                .decompress_stream(&mut to, &mut from)
                .map_err(fail)?;
            // 0: the frame has ended.
            if hint == 0 || to.pos() == room {
                return Ok(to.pos());
            }
            if (from.pos(), to.pos()) == before || from.pos() == input.len() {
                return Err(bad(Algorithm::Zstd, "the frame is cut short"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_beyond_a_unit_is_refused() {
        let input: Vec<u8> = b"long window ".repeat(40_000);
        let mut context = CCtx::create();
        context.set_parameter(CParameter::WindowLog(18)).unwrap();
        context
            .set_parameter(CParameter::ContentSizeFlag(false))
            .unwrap();
        let mut frame = vec![0; 100_000];
        let length = context.compress2(&mut frame[..], &input).unwrap();
        let mut output = vec![0; 4096];
        let error = Zstd::default().decompress(&frame[..length], &mut output);
        assert!(error.is_err(), "{error:?}");
    }

    #[test]
    fn old_formats_and_skippable_frames_are_refused() {
        let mut output = [0; 64];
        for magic in [0xfd2f_b527_u32, 0xfd2f_b522, 0x184d_2a50] {
            let mut input = magic.to_le_bytes().to_vec();
            input.resize(64, 0);
            assert!(Zstd::default().decompress(&input, &mut output).is_err());
        }
    }
}
