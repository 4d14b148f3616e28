//! Parity of a row of elements: how it is computed, and how elements are
//! rebuilt from it.
//!
//! P is the sum of the data. Q is the sum of the data, each multiplied by a
//! power of 2. Both are in the field of 256 elements with the polynomial 0x11d,
//! as in all RAID 6 on Linux (H. P. Anvin, "The mathematics of RAID-6").
//! Addition is exclusive or. Knows no devices.

/// The polynomial without its highest bit, which a byte cannot hold.
const OVERFLOW: u8 = 0x1d;

const fn double(value: u8) -> u8 {
    let low = value.wrapping_shl(1);
    if value & 0x80 == 0 {
        low
    } else {
        low ^ OVERFLOW
    }
}

fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b = b.wrapping_shr(1);
    }
    product
}

/// The coefficient of a column in Q.
fn coefficient(column: usize) -> u8 {
    (0..column).fold(1, |value, _| double(value))
}

/// The field has 255 elements that are not 0, so the 254th power inverts.
fn invert(value: u8) -> u8 {
    (0..254).fold(1, |product, _| multiply(product, value))
}

/// Multiplies all bytes by one factor.
fn scale(bytes: &mut [u8], factor: u8) {
    let mut table = [0; 256];
    for (value, product) in (0..=u8::MAX).zip(&mut table) {
        *product = multiply(value, factor);
    }
    for byte in bytes {
        *byte = table.get(usize::from(*byte)).copied().unwrap_or_default();
    }
}

fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= from;
    }
}

/// Doubles eight bytes at a time.
fn double_all(bytes: &mut [u8]) {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        let value = u64::from_ne_bytes(*word);
        let high = value & HIGH;
        // Each lane has 0 or 1 here, so no product leaves its lane.
        let overflow = high.wrapping_shr(7).wrapping_mul(u64::from(OVERFLOW));
        *word = ((value ^ high).wrapping_shl(1) ^ overflow).to_ne_bytes();
    }
    for byte in rest {
        *byte = double(*byte);
    }
}

/// P of data columns of one length.
pub(crate) fn sum(data: &[Vec<u8>]) -> Vec<u8> {
    let mut p = data.first().cloned().unwrap_or_default();
    for column in data.iter().skip(1) {
        add(&mut p, column);
    }
    p
}

/// Q of data columns of one length.
pub(crate) fn weighted_sum(data: &[Vec<u8>]) -> Vec<u8> {
    let mut q = data.last().cloned().unwrap_or_default();
    for column in data.iter().rev().skip(1) {
        double_all(&mut q);
        add(&mut q, column);
    }
    q
}

/// Rebuilds the columns of a row that are `lost` (indexes, ascending). Columns
/// are the data in logical order, then P, then Q if there are two parities.
/// False, and nothing is rebuilt, if more is lost than the parities make up
/// for.
pub(crate) fn solve(columns: &mut [Vec<u8>], parities: usize, lost: &[usize]) -> bool {
    let count = columns.len().saturating_sub(parities);
    let (data, parity) = columns.split_at_mut(count);
    let is_lost = |column: usize| lost.contains(&column);
    let mut known = parity.iter().zip(count..).map(|(column, index)| {
        let there = !is_lost(index);
        there.then(|| column.clone())
    });
    let (p, q) = (known.next().flatten(), known.next().flatten());
    drop(known);
    let lost_data: Vec<usize> = lost.iter().copied().filter(|n| *n < count).collect();
    for index in &lost_data {
        if let Some(column) = data.get_mut(*index) {
            column.fill(0);
        }
    }
    match (&lost_data[..], p, q) {
        ([], _, _) => {}
        ([x], Some(mut p), _) => {
            add(&mut p, &sum(data));
            put(data, *x, p);
        }
        ([x], None, Some(mut q)) => {
            add(&mut q, &weighted_sum(data));
            scale(&mut q, invert(coefficient(*x)));
            put(data, *x, q);
        }
        ([x, y], Some(mut p), Some(mut q)) => {
            // X + Y = p and aX + bY = q, so X = (q + bp) / (a + b).
            add(&mut p, &sum(data));
            add(&mut q, &weighted_sum(data));
            let (a, b) = (coefficient(*x), coefficient(*y));
            let mut first = p.clone();
            scale(&mut first, b);
            add(&mut first, &q);
            scale(&mut first, invert(a ^ b));
            add(&mut p, &first);
            put(data, *x, first);
            put(data, *y, p);
        }
        _ => return false,
    }
    let (first, second) = (count, count.saturating_add(1));
    if is_lost(first) {
        put(parity, 0, sum(data));
    }
    if parities > 1 && is_lost(second) {
        put(parity, 1, weighted_sum(data));
    }
    true
}

fn put(columns: &mut [Vec<u8>], index: usize, content: Vec<u8>) {
    if let Some(column) = columns.get_mut(index) {
        *column = content;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(count: usize, parities: usize) -> Vec<Vec<u8>> {
        let mut data: Vec<Vec<u8>> = (0..count)
            .map(|column| {
                (0..1003_usize)
                    .map(|n| (n * 7 + column * 89 + n * n * (column + 3)) as u8)
                    .collect()
            })
            .collect();
        let mut all = vec![sum(&data), weighted_sum(&data)];
        all.truncate(parities);
        data.extend(all);
        data
    }

    #[test]
    fn the_field_is_one() {
        for value in 1..=255 {
            assert_eq!(multiply(value, invert(value)), 1);
            assert_eq!(multiply(value, 2), double(value));
        }
        // 2 generates the field: its powers below the 255th differ.
        let mut powers: Vec<u8> = (0..255).map(coefficient).collect();
        powers.sort_unstable();
        assert_eq!(powers, (1..=255).collect::<Vec<u8>>());
        // A known product of this polynomial.
        assert_eq!(multiply(0x80, 2), 0x1d);
    }

    #[test]
    fn whatever_is_lost_comes_back() {
        for (parities, counts) in [(1, 1..8), (2, 1..8)] {
            for count in counts {
                let whole = columns(count, parities);
                let all = count + parities;
                for x in 0..all {
                    for y in x..all {
                        let mut lost = vec![x, y];
                        lost.dedup();
                        let mut found = whole.clone();
                        for index in &lost {
                            found[*index].fill(0xee);
                        }
                        let solved = solve(&mut found, parities, &lost);
                        assert_eq!(solved, lost.len() <= parities, "{count} {lost:?}");
                        if solved {
                            assert_eq!(found, whole, "{count} {lost:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn three_are_too_many() {
        let mut all = columns(4, 2);
        assert!(!solve(&mut all, 2, &[0, 1, 2]));
        assert!(!solve(&mut all, 2, &[0, 4, 5]));
    }
}
