//! Time zones: what the environment's TZ and /etc/localtime say.
//!
//! Reads the files of the zone database (RFC 8536) and rules as POSIX has them
//! for TZ. What cannot be understood is UTC, as in the C library.

use std::path::Path;

/// Where the zone database is.
const DATABASE: &str = "/usr/share/zoneinfo";
/// The zone of the machine.
const OF_MACHINE: &str = "/etc/localtime";
const DAY: i64 = 86_400;

/// A time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// From when on which offset counts, in seconds, ascending.
    changes: Vec<(i64, i64)>,
    /// The offset before all changes.
    first: i64,
    /// What counts after them.
    rule: Option<Rule>,
}

impl Zone {
    /// The zone that a value of TZ names, or that of the machine.
    pub fn of(name: Option<&str>) -> Self {
        let file = |path: &Path| {
            std::fs::read(path)
                .ok()
                .and_then(|bytes| Self::parse(&bytes))
        };
        let Some(name) = name else {
            return file(Path::new(OF_MACHINE)).unwrap_or_default();
        };
        let name = name.strip_prefix(':').unwrap_or(name);
        // Nothing else is read for a name that another process gave.
        let inside = name
            .strip_prefix(DATABASE)
            .map_or(name, |rest| rest.trim_start_matches('/'));
        let is_inside = !inside.is_empty()
            && !inside.starts_with('/')
            && inside.split('/').all(|part| part != "..");
        let known = is_inside.then(|| file(&Path::new(DATABASE).join(inside)));
        known.flatten().unwrap_or_else(|| Self {
            rule: Rule::parse(name),
            ..Self::default()
        })
    }

    /// Seconds that the zone is ahead of UTC at a moment.
    pub fn offset(&self, seconds: i64) -> i64 {
        let count = self.changes.partition_point(|(from, _)| *from <= seconds);
        match (&self.rule, count) {
            (Some(rule), count) if count == self.changes.len() => rule.offset(seconds),
            (_, 0) => self.first,
            (_, count) => {
                let last = count.checked_sub(1).and_then(|last| self.changes.get(last));
                last.map_or(self.first, |(_, offset)| *offset)
            }
        }
    }

    /// A file of the zone database.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let header = Header::parse(bytes)?;
        if header.version < b'2' {
            return header.block(bytes.get(Header::SIZE..)?, 4);
        }
        // What follows has times of 64 bits.
        let second = bytes.get(Header::SIZE.checked_add(header.size(4)?)?..)?;
        let header = Header::parse(second)?;
        let mut zone = header.block(second.get(Header::SIZE..)?, 8)?;
        let rest = second.get(Header::SIZE.checked_add(header.size(8)?)?..)?;
        let rule = std::str::from_utf8(rest).ok()?.trim_matches('\n');
        zone.rule = Rule::parse(rule);
        Some(zone)
    }
}

/// The counts at the beginning of a part of such a file.
struct Header {
    version: u8,
    flags: usize,
    leaps: usize,
    changes: usize,
    kinds: usize,
    letters: usize,
}

impl Header {
    const SIZE: usize = 44;
    /// Bytes of a kind: offset, whether it is summer time, and its name.
    const KIND: usize = 6;

    fn parse(bytes: &[u8]) -> Option<Self> {
        let count = |at: usize| {
            let bytes = bytes.get(at..)?.first_chunk()?;
            usize::try_from(u32::from_be_bytes(*bytes)).ok()
        };
        Some(Self {
            version: *bytes.strip_prefix(b"TZif")?.first()?,
            flags: count(20)?.checked_add(count(24)?)?,
            leaps: count(28)?,
            changes: count(32)?,
            kinds: count(36)?,
            letters: count(40)?,
        })
    }

    /// Bytes of the part behind the header.
    fn size(&self, time: usize) -> Option<usize> {
        let parts = [
            self.changes.checked_mul(time.checked_add(1)?)?,
            self.kinds.checked_mul(Self::KIND)?,
            self.letters,
            self.leaps.checked_mul(time.checked_add(4)?)?,
            self.flags,
        ];
        parts.into_iter().try_fold(0_usize, usize::checked_add)
    }

    fn block(&self, bytes: &[u8], time: usize) -> Option<Zone> {
        let times = self.changes.checked_mul(time)?;
        let kinds_at = times.checked_add(self.changes)?;
        let kinds = bytes
            .get(kinds_at..)?
            .get(..self.kinds.checked_mul(Self::KIND)?)?;
        let offset = |kind: u8| -> Option<i64> {
            let kind = kinds.chunks_exact(Self::KIND).nth(kind.into())?;
            Some(i32::from_be_bytes(*kind.first_chunk()?).into())
        };
        let moment = |bytes: &[u8]| match bytes.first_chunk() {
            Some(bytes) => i64::from_be_bytes(*bytes),
            None => bytes
                .first_chunk()
                .map_or(0, |bytes| i32::from_be_bytes(*bytes).into()),
        };
        let moments = bytes.get(..times)?.chunks_exact(time).map(moment);
        let which = bytes.get(times..kinds_at)?;
        let changes = moments
            .zip(which)
            .map(|(from, kind)| Some((from, offset(*kind)?)));
        Some(Zone {
            changes: changes.collect::<Option<_>>()?,
            first: offset(0)?,
            rule: None,
        })
    }
}

/// Standard time, and summer time of each year.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    standard: i64,
    summer: Option<Summer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Summer {
    offset: i64,
    /// A day of the year, and seconds from its beginning, on the clock that
    /// counts until then.
    begins: (Day, i64),
    ends: (Day, i64),
}

/// A day of any year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Day {
    /// Of a month the n-th one (5: the last) of a day of the week (0: Sunday).
    OfWeek { month: i64, week: i64, day: i64 },
    /// From 0 on, where leap days count.
    OfYear(i64),
    /// From 1 on, where they do not.
    WithoutLeap(i64),
}

impl Rule {
    /// As POSIX has it: `CET-1CEST,M3.5.0,M10.5.0/3`.
    fn parse(text: &str) -> Option<Self> {
        let (clocks, dates) = match text.split_once(',') {
            Some((clocks, dates)) => (clocks, Some(dates)),
            None => (text, None),
        };
        let (standard, rest) = clock(clocks)?;
        let standard = standard?;
        if rest.is_empty() {
            return Some(Self {
                standard,
                summer: None,
            });
        }
        let (offset, rest) = clock(rest)?;
        let (begins, ends) = dates.unwrap_or("M3.2.0,M11.1.0").split_once(',')?;
        rest.is_empty().then_some(())?;
        Some(Self {
            standard,
            summer: Some(Summer {
                offset: offset.unwrap_or(standard + 3600),
                begins: change(begins)?,
                ends: change(ends)?,
            }),
        })
    }

    fn offset(&self, seconds: i64) -> i64 {
        let Some(summer) = &self.summer else {
            return self.standard;
        };
        let local = seconds.saturating_add(self.standard);
        let year = year_of(local.div_euclid(DAY));
        let at = |(day, time): (Day, i64), offset: i64| day.in_year(year) * DAY + time - offset;
        let begins = at(summer.begins, self.standard);
        let ends = at(summer.ends, summer.offset);
        let is_summer = match begins < ends {
            true => (begins..ends).contains(&seconds),
            false => !(ends..begins).contains(&seconds),
        };
        match is_summer {
            true => summer.offset,
            false => self.standard,
        }
    }
}

/// The offset of a named clock (`CET-1`), if one is given, and what follows.
fn clock(text: &str) -> Option<(Option<i64>, &str)> {
    let rest = match text.strip_prefix('<') {
        Some(name) => name.split_once('>')?.1,
        None => {
            let rest = text.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
            (text.len() - rest.len() >= 3).then_some(rest)?
        }
    };
    let end = rest.find(|letter: char| !"+-:0123456789".contains(letter));
    let (time, rest) = rest.split_at(end.unwrap_or(rest.len()));
    match time {
        "" => Some((None, rest)),
        // West of Greenwich is positive.
        time => Some((Some(-seconds_of(time)?), rest)),
    }
}

/// `[+-]hh[:mm[:ss]]`
fn seconds_of(text: &str) -> Option<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut sum = 0;
    for (part, unit) in text.split(':').zip([3600, 60, 1]) {
        let number: u16 = part.parse().ok()?;
        sum += i64::from(number) * unit;
    }
    Some(sign * sum)
}

/// A day with a time: `M3.5.0/3`.
fn change(text: &str) -> Option<(Day, i64)> {
    let (day, time) = match text.split_once('/') {
        Some((day, time)) => (day, seconds_of(time)?),
        None => (text, 7200),
    };
    let number = |text: &str| -> Option<i64> { text.parse::<u16>().ok().map(i64::from) };
    let day = if let Some(rest) = day.strip_prefix('M') {
        let mut parts = rest.split('.').map(number);
        let (month, week, day) = (parts.next()??, parts.next()??, parts.next()??);
        let is_one = (1..=12).contains(&month) && (1..=5).contains(&week) && day < 7;
        is_one.then_some(Day::OfWeek { month, week, day })?
    } else if let Some(rest) = day.strip_prefix('J') {
        Day::WithoutLeap(number(rest)?)
    } else {
        Day::OfYear(number(day)?)
    };
    Some((day, time))
}

impl Day {
    /// Days from 1970 to this day of a year.
    fn in_year(self, year: i64) -> i64 {
        match self {
            Self::OfYear(day) => days_to(year, 1) + day,
            Self::WithoutLeap(day) => {
                let is_leap = days_to(year, 3) - days_to(year, 2) == 29;
                days_to(year, 1) + day - 1 + i64::from(is_leap && day >= 60)
            }
            Self::OfWeek { month, week, day } => {
                let first = days_to(year, month);
                // 1970 began on a Thursday.
                let ahead = (day - first - 4).rem_euclid(7);
                let length = days_to(year, month + 1) - first;
                let mut at = ahead + (week - 1) * 7;
                while at >= length {
                    at -= 7;
                }
                first + at
            }
        }
    }
}

/// Days from 1970 to the first of a month; month 13 is the next January.
const fn days_to(year: i64, month: i64) -> i64 {
    // Years begin with March, so that the leap day is the last one.
    let (year, month) = match month {
        13 => (year, 10),
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = (153 * month + 2) / 5;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + days - 719_468
}

/// The year of a day, counted from 1970.
fn year_of(days: i64) -> i64 {
    // 400 years have 146,097 days.
    let guess = 1970 + days.saturating_mul(400).div_euclid(146_097);
    let is_right = |year: &i64| (days_to(*year, 1)..days_to(year + 1, 1)).contains(&days);
    (guess - 1..=guess + 1).find(is_right).unwrap_or(guess)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moments and offsets in Berlin and New York, as date(1) says.
    #[test]
    fn rules_are_those_of_the_clocks() {
        let berlin = Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3"));
        let york = Zone::of(Some("EST5EDT,M3.2.0,M11.1.0"));
        for (seconds, here, there) in [
            (1_711_846_799, 3600, -14_400),
            (1_711_846_800, 7200, -14_400),
            (1_729_990_799, 7200, -14_400),
            (1_729_990_800, 3600, -14_400),
            (1_730_613_599, 3600, -14_400),
            (1_730_613_600, 3600, -18_000),
            (1_704_067_200, 3600, -18_000),
            (951_782_400, 3600, -18_000),
            (4_102_444_800, 3600, -18_000),
        ] {
            assert_eq!(berlin.offset(seconds), here, "{seconds}");
            assert_eq!(york.offset(seconds), there, "{seconds}");
        }
        let south = Zone::of(Some("<-03>3<-02>,M10.3.0/0,M2.3.0/0"));
        assert_eq!(south.offset(1_704_067_200), -7200);
        assert_eq!(south.offset(1_719_792_000), -10_800);
        assert_eq!(Zone::of(Some("<+0530>-5:30")).offset(0), 19_800);
        for odd in [
            "",
            "x",
            "UTC",
            "../etc/passwd",
            "/etc/passwd",
            "ABC1DEF,M1",
            "A,,",
        ] {
            let zone = Zone::of(Some(odd));
            assert!([0, -3600].contains(&zone.offset(1_704_067_200)), "{odd}");
        }
    }

    #[test]
    fn years_have_their_days() {
        assert_eq!(days_to(1970, 1), 0);
        assert_eq!(days_to(2000, 3), 11_017);
        assert_eq!(days_to(2023, 13), days_to(2024, 1));
        // A number that no disk should have.
        let _ = Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3")).offset(i64::MAX);
        let _ = Zone::of(Some("CET-1CEST,M3.5.0,M10.5.0/3")).offset(i64::MIN);
        for year in [1900, 1969, 1970, 1999, 2000, 2024, 2100, 2400] {
            assert_eq!(year_of(days_to(year, 1)), year);
            assert_eq!(year_of(days_to(year + 1, 1) - 1), year);
        }
    }

    /// A file with one change and a rule.
    #[test]
    fn files_of_the_database_are_read() {
        let part = |time: usize| {
            let mut bytes = b"TZif2".to_vec();
            bytes.extend([0; 15]);
            for count in [0_u32, 0, 0, 1, 2, 4] {
                bytes.extend(count.to_be_bytes());
            }
            match time {
                4 => bytes.extend(1_000_i32.to_be_bytes()),
                _ => bytes.extend(1_000_i64.to_be_bytes()),
            }
            bytes.push(1);
            for offset in [600_i32, 1200] {
                bytes.extend(offset.to_be_bytes());
                bytes.extend([0, 0]);
            }
            bytes.extend(b"ABC\0");
            bytes
        };
        let whole = [part(4), part(8), b"\nXYZ-1\n".to_vec()].concat();
        let zone = Zone::parse(&whole).unwrap();
        assert_eq!((zone.offset(999), zone.offset(1000)), (600, 3600));
        for length in 0..whole.len() {
            let _ = Zone::parse(&whole[..length]);
        }
    }
}
