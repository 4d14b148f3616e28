//! Facts about subvolumes in the form for people and for JSON.

use crate::dates::date;
use butterfs::UuidBytes;
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

/// A path for people and JSON.
pub fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
