//! A row with parity as it is on its devices, while nobody changes it.

use crate::full_stripes::Slice;
use crate::geometry::ELEMENT;
use crate::parity;
use crate::space::{LogicalSpace, ROW_LOCKS};
use crate::stats::DeviceStats;
use crate::{VolumeError, memory_of};
use butterfs_format::{Logical, Physical};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The lock of some rows with parity, and how often one of them was written to.
#[derive(Debug, Default)]
pub(crate) struct RowLock {
    lock: Mutex<()>,
    /// Odd while data and parities do not match.
    writes: AtomicU64,
}

/// Keeps everybody from writing to a row with parity.
#[derive(Debug)]
pub struct RowHold<'s> {
    _lock: Option<MutexGuard<'s, ()>>,
}

/// While this lives, what is rebuilt from the row may be wrong.
pub(crate) struct RowWrite<'s>(Option<&'s RowLock>);

impl Drop for RowWrite<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.0 {
            row.writes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The content of a row with parity, for callers that compare its parities.
/// Nobody writes to the row while this lives.
pub struct LockedRow<'s> {
    space: &'s LogicalSpace,
    start: Logical,
    slice: Slice,
    _hold: RowHold<'s>,
}

impl LogicalSpace {
    fn row_lock(&self, start: Logical) -> Option<&RowLock> {
        let number = memory_of(start.get().checked_div(ELEMENT).unwrap_or(0));
        self.rows.get(number.checked_rem(ROW_LOCKS).unwrap_or(0))
    }

    pub(crate) fn hold_row_at(&self, start: Logical) -> RowHold<'_> {
        RowHold {
            _lock: self.row_lock(start).map(|row| row.lock.lock()),
        }
    }

    /// Call it before elements of a held row are written that do not match
    /// until all are.
    pub(crate) fn write_to_row(&self, start: Logical) -> RowWrite<'_> {
        let row = self.row_lock(start);
        if let Some(row) = row {
            row.writes.fetch_add(1, Ordering::SeqCst);
        }
        RowWrite(row)
    }

    /// Reads a row; `None` if somebody wrote to it meanwhile. Whoever holds the
    /// row may call this too.
    pub(crate) fn unless_written<R>(&self, start: Logical, read: impl FnOnce() -> R) -> Option<R> {
        let Some(row) = self.row_lock(start) else {
            return Some(read());
        };
        // If the lock is free, nobody writes. If not, the holder may only read.
        let _nobody_writes = row.lock.try_lock();
        let before = row.writes.load(Ordering::SeqCst);
        if !before.is_multiple_of(2) {
            return None;
        }
        let result = read();
        (row.writes.load(Ordering::SeqCst) == before).then_some(result)
    }

    /// Keeps everybody else from writing to the row that holds `logical`;
    /// `None` where there is no parity.
    #[must_use]
    pub fn hold_row(&self, logical: Logical) -> Option<RowHold<'_>> {
        let (start, _) = self.map().row(logical)?;
        Some(self.hold_row_at(start))
    }

    /// Locks and reads the row that holds `logical`; `None` if there is no
    /// parity. A column that cannot be read counts as a read error, and
    /// [`LockedRow::is_readable`] tells of it.
    #[must_use]
    pub fn lock_row(&self, logical: Logical) -> Option<LockedRow<'_>> {
        let (start, row) = self.map().row(logical)?;
        let hold = self.hold_row_at(start);
        let slice = self.read_slice(row, 0..ELEMENT, |_| true);
        Some(LockedRow {
            space: self,
            start,
            slice,
            _hold: hold,
        })
    }
}

impl LockedRow<'_> {
    /// Logical addresses of the row.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.start.get();
        let length = ELEMENT.saturating_mul(crate::bytes_of(self.data_columns()));
        start..start.saturating_add(length)
    }

    /// Columns of data; the parities follow them.
    #[must_use]
    pub fn data_columns(&self) -> usize {
        self.slice.data()
    }

    /// Bytes of each column.
    #[must_use]
    pub fn column_length(&self) -> u64 {
        ELEMENT
    }

    /// True where a column was read.
    #[must_use]
    pub fn is_readable(&self, column: usize) -> bool {
        !self.slice.lost.contains(&column)
    }

    /// True where the device of a column is not used.
    #[must_use]
    pub fn is_missing(&self, column: usize) -> bool {
        let element = self.slice.row.elements.get(column);
        element.is_none_or(|element| self.space.used(element.device).is_err())
    }

    /// Where a column begins on its device.
    #[must_use]
    pub fn place(&self, column: usize) -> Option<Physical> {
        self.slice.place(column)
    }

    /// What was read of a column; zeros where it cannot be read.
    #[must_use]
    pub fn column(&self, column: usize) -> &[u8] {
        let found = self.slice.columns.get(column);
        found.map_or(&[], |bytes| &bytes[..])
    }

    /// Where a logical address of the row lies: column and offset in it.
    #[must_use]
    pub fn position(&self, logical: u64) -> (usize, u64) {
        crate::full_stripes::position(self.start, Logical(logical))
    }

    /// Bytes at a logical address of the row, up to the end of the row.
    #[must_use]
    pub fn data(&self, logical: u64, length: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(memory_of(length));
        for (column, inside) in self.parts(logical, length) {
            bytes.extend_from_slice(self.column(column).get(inside).unwrap_or_default());
        }
        bytes
    }

    /// Replaces what is at a logical address by `good`, in memory only.
    pub fn set_data(&mut self, logical: u64, good: &[u8]) {
        let parts: Vec<_> = self.parts(logical, crate::bytes_of(good.len())).collect();
        let mut rest = good;
        for (column, inside) in parts {
            let target = self.slice.columns.get_mut(column);
            let Some(target) = target.and_then(|bytes| bytes.get_mut(inside)) else {
                return;
            };
            let (part, later) = rest.split_at(target.len().min(rest.len()));
            if part.len() == target.len() {
                target.copy_from_slice(part);
            }
            rest = later;
        }
    }

    /// The parts of columns in which a logical range lies.
    pub fn parts(
        &self,
        logical: u64,
        length: u64,
    ) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let start = self.start;
        let end = logical.saturating_add(length).min(self.range().end);
        let mut at = logical;
        std::iter::from_fn(move || {
            let (column, inside) = crate::full_stripes::position(start, Logical(at));
            let length = ELEMENT.saturating_sub(inside).min(end.saturating_sub(at));
            at = at.saturating_add(length);
            let to = inside.saturating_add(length);
            (length > 0).then(|| (column, memory_of(inside)..memory_of(to)))
        })
    }

    /// A parity computed from the data as they are here: 0 for P, 1 for Q.
    #[must_use]
    pub fn parity(&self, which: usize) -> Vec<u8> {
        let data = self.slice.columns.get(..self.data_columns());
        let data = data.unwrap_or_default();
        match which {
            0 => parity::sum(data),
            _ => parity::weighted_sum(data),
        }
    }

    /// Writes a part of a column's element. False where copies are not healed.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn write(&self, column: usize, inside: u64, bytes: &[u8]) -> Result<bool, VolumeError> {
        let Some(place) = self.slice.place(column) else {
            return Ok(false);
        };
        let place = Physical {
            offset: place.offset.saturating_add(inside),
            ..place
        };
        let Ok((device, stats)) = self.space.used(place.device) else {
            return Ok(false);
        };
        if !self.space.may_heal(&*device) {
            return Ok(false);
        }
        self.space.check_write(self.start, place, bytes.len())?;
        let written = device.write_at(place.offset, bytes);
        written.inspect_err(|_| DeviceStats::count(&stats.write_errs))?;
        Ok(true)
    }
}
