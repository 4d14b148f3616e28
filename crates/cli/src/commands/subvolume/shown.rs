//! Facts about subvolumes in the form for people and for JSON.

use crate::dates::date;
use crate::zone::Zone;
use butterfs::UuidBytes;
use serde::{Serialize, Serializer};
use uuid::Uuid;

/// A UUID; `None` where there is none.
pub fn uuid(bytes: UuidBytes) -> Option<String> {
    (bytes != [0; 16]).then(|| Uuid::from_bytes(bytes).to_string())
}

/// `YYYY-MM-DD hh:mm:ss` in UTC.
pub fn moment(seconds: i64) -> String {
    let date = date(seconds);
    format!("{date}:{:02}", seconds.rem_euclid(60))
}

/// `YYYY-MM-DD hh:mm:ss +hhmm` in a time zone.
pub fn local(seconds: i64, zone: &Zone) -> String {
    let offset = zone.offset(seconds);
    let sign = if offset < 0 { '-' } else { '+' };
    let ahead = offset.unsigned_abs();
    let moment = moment(seconds.saturating_add(offset));
    format!("{moment} {sign}{:02}{:02}", ahead / 3600, ahead / 60 % 60)
}

/// A path or name in a volume. Text output has its bytes. JSON is UTF-8, and has
/// U+FFFD in place of what is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(&self.0))
    }
}

/// A path for messages and JSON.
pub fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
