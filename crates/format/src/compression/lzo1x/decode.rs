//! Decodes LZO1X streams.

use super::{END, FAR};

/// A copy of up to this many bytes copies exactly this many if there is room.
/// Most copies are short, and a fixed length needs no loop.
const WIDE: usize = 16;

/// Why a stream does not decode.
pub type Reason = &'static str;

const CUT_SHORT: Reason = "the stream is cut short";
const TOO_LONG: Reason = "the stream holds more than its sector";

/// Decodes `stream` into `output`; gives how many bytes it filled. The rest of
/// `output` is not defined.
///
/// # Errors
/// The stream is cut short, has bytes after its end, refers to what was not
/// decoded yet, or does not fit `output`.
pub fn decode(stream: &[u8], output: &mut [u8]) -> Result<usize, Reason> {
    let mut decoder = Decoder {
        stream,
        at: 0,
        output,
        filled: 0,
    };
    decoder.run()?;
    Ok(decoder.filled)
}

/// What the last instruction left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// A match with no literals.
    Match,
    /// One to three literals.
    FewLiterals,
    /// A run of four and more literals.
    LiteralRun,
}

struct Decoder<'a> {
    stream: &'a [u8],
    at: usize,
    output: &'a mut [u8],
    filled: usize,
}

impl Decoder<'_> {
    fn run(&mut self) -> Result<(), Reason> {
        let mut after = After::Match;
        match self.stream.first().copied() {
            Some(first @ 18..) => {
                self.at = 1;
                after = self.literals_after(usize::from(first.wrapping_sub(17)))?;
            }
            // 17 and a version announce the run-length variant; in Btrfs
            // nothing writes it.
            Some(17) if self.stream.len() >= 5 => return Err("unknown version of the stream"),
            _ => {}
        }
        loop {
            let instruction = self.byte()?;
            let low = usize::from(instruction);
            let (length, distance, literals) = match instruction {
                0..=15 => match after {
                    After::Match => {
                        let mut count = low.wrapping_add(3);
                        if low == 0 {
                            count = self.long(18)?;
                        }
                        self.copy_literals(count)?;
                        after = After::LiteralRun;
                        continue;
                    }
                    After::FewLiterals => (2, self.short_distance(low >> 2, 2, 1)?, low & 3),
                    After::LiteralRun => (3, self.short_distance(low >> 2, 2, 2049)?, low & 3),
                },
                16..=31 => {
                    let length = self.length(low & 7, 9)?;
                    let (d, literals) = self.long_distance()?;
                    let distance = d.wrapping_add((low & 8) << 11).wrapping_add(FAR);
                    if distance == FAR {
                        return self.end(length);
                    }
                    (length, distance, literals)
                }
                32..=63 => {
                    let length = self.length(low & 31, 33)?;
                    let (d, literals) = self.long_distance()?;
                    (length, d.wrapping_add(1), literals)
                }
                64.. => {
                    let length = (low >> 5).wrapping_add(1);
                    let distance = self.short_distance((low >> 2) & 7, 3, 1)?;
                    (length, distance, low & 3)
                }
            };
            self.copy_match(length, distance)?;
            after = self.literals_after(literals)?;
        }
    }

    fn byte(&mut self) -> Result<u8, Reason> {
        let byte = self.stream.get(self.at).copied().ok_or(CUT_SHORT)?;
        self.at = self.at.wrapping_add(1);
        Ok(byte)
    }

    /// A match's length. If the field in the instruction is 0, the length is in
    /// the bytes that follow.
    fn length(&mut self, field: usize, base: usize) -> Result<usize, Reason> {
        if field == 0 {
            self.long(base)
        } else {
            Ok(field.wrapping_add(2))
        }
    }

    /// A length that goes on in the next bytes: 255 for each zero byte, then
    /// the value of the first other byte.
    fn long(&mut self, base: usize) -> Result<usize, Reason> {
        let mut length = base;
        loop {
            match self.byte()? {
                0 => length = length.saturating_add(255),
                last => return Ok(length.saturating_add(usize::from(last))),
            }
            // A length beyond the output is an error, so a long run of zeros
            // ends early.
            if length > self.output.len() {
                return Err(TOO_LONG);
            }
        }
    }

    fn short_distance(&mut self, low: usize, bits: u32, base: usize) -> Result<usize, Reason> {
        let high = usize::from(self.byte()?).wrapping_shl(bits);
        Ok(high.wrapping_add(low).wrapping_add(base))
    }

    /// The distance field of two bytes and the literals after the match.
    fn long_distance(&mut self) -> Result<(usize, usize), Reason> {
        let bytes = [self.byte()?, self.byte()?];
        let field = usize::from(u16::from_le_bytes(bytes));
        Ok((field >> 2, field & 3))
    }

    fn literals_after(&mut self, count: usize) -> Result<After, Reason> {
        if count == 0 {
            return Ok(After::Match);
        }
        self.copy_literals(count)?;
        Ok(if count < 4 {
            After::FewLiterals
        } else {
            After::LiteralRun
        })
    }

    #[inline]
    fn copy_literals(&mut self, count: usize) -> Result<(), Reason> {
        let from = self.stream.get(self.at..).unwrap_or_default();
        let to = self.output.get_mut(self.filled..).unwrap_or_default();
        if let (true, Some(from), Some(to)) = (
            count <= WIDE,
            from.first_chunk::<WIDE>(),
            to.first_chunk_mut::<WIDE>(),
        ) {
            *to = *from;
        } else {
            let from = from.get(..count).ok_or(CUT_SHORT)?;
            to.get_mut(..count).ok_or(TOO_LONG)?.copy_from_slice(from);
        }
        self.at = self.at.wrapping_add(count);
        self.filled = self.filled.wrapping_add(count);
        Ok(())
    }

    #[inline]
    fn copy_match(&mut self, length: usize, distance: usize) -> Result<(), Reason> {
        let from = self
            .filled
            .checked_sub(distance)
            .ok_or("a match lies before the first byte")?;
        let end = self.filled.saturating_add(length);
        if end > self.output.len() {
            return Err(TOO_LONG);
        }
        let (done, open) = self.output.split_at_mut(self.filled);
        let source = done.get(from..).unwrap_or_default();
        if let (true, Some(source), Some(open)) = (
            length <= WIDE,
            source.first_chunk::<WIDE>(),
            open.first_chunk_mut::<WIDE>(),
        ) {
            *open = *source;
        } else if distance == 1 {
            let byte = source.first().copied().unwrap_or_default();
            open.get_mut(..length).unwrap_or_default().fill(byte);
        } else {
            // A match may overlap its own output. Its bytes repeat with the
            // distance, so each round can copy everything from `from` to `at`.
            let mut at = self.filled;
            while at < end {
                let count = at.wrapping_sub(from).min(end.wrapping_sub(at));
                self.output.copy_within(from..from.wrapping_add(count), at);
                at = at.wrapping_add(count);
            }
        }
        self.filled = end;
        Ok(())
    }

    fn end(&self, length: usize) -> Result<(), Reason> {
        if length != END.len() {
            return Err("the end has an impossible length");
        }
        if self.at != self.stream.len() {
            return Err("the stream has bytes after its end");
        }
        Ok(())
    }
}
