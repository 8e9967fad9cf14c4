//! The kinds of values: how each is read from text, shown again, and what to say when it is neither.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

use super::sections::LogFormat;
use crate::store::Settings;
use crate::telemetry::trace;

/// One kind of value. A parse that fails says what the value must be.
pub(super) struct Kind<T> {
    pub(super) parse: fn(&str) -> Result<T, String>,
    pub(super) show: fn(&T) -> String,
    /// Never repeated in messages.
    pub(super) secret: bool,
}

const fn open<T>(parse: fn(&str) -> Result<T, String>, show: fn(&T) -> String) -> Kind<T> {
    Kind {
        parse,
        show,
        secret: false,
    }
}

/// The schema's own bound on payloads and results, which it keeps in memory twice.
const MAX_BODY: usize = 64 << 20;

/// A frame holds one body of that size and what goes with it.
const MAX_FRAME: usize = 128 << 20;

pub(super) const DURATION: Kind<Duration> =
    open(|text| duration(text, Duration::ZERO), show_duration);

pub(super) const POSITIVE_DURATION: Kind<Duration> = open(
    |text| duration(text, Duration::from_millis(1)),
    show_duration,
);

/// Zero means none.
pub(super) const OPTIONAL_DURATION: Kind<Option<Duration>> = open(
    |text| duration(text, Duration::ZERO).map(|span| (!span.is_zero()).then_some(span)),
    |span| span.as_ref().map_or_else(|| "0s".to_owned(), show_duration),
);

/// How long something is kept once it has ended.
pub(super) const AGE: Kind<Option<Duration>> = open(
    |text| match text {
        "never" => Ok(None),
        text => span(text, SHORTEST_AGE).map(Some).ok_or_else(|| {
            "must be \"never\", or a duration from 1h to 3650d, such as 12h or 30d".to_owned()
        }),
    },
    |age| {
        age.as_ref()
            .map_or_else(|| "never".to_owned(), show_duration)
    },
);

/// None keeps what the database has.
pub(super) const OPTIONAL_SPAN: Kind<Option<Duration>> = open(
    |text| {
        span(text, Duration::ZERO)
            .map(Some)
            .ok_or_else(|| "must be a duration up to 3650d, such as 0s, 1h or 7d".to_owned())
    },
    |age| {
        age.as_ref()
            .map_or_else(|| "as stored in the database".to_owned(), show_duration)
    },
);

pub(super) const COUNT: Kind<usize> = open(|text| whole(text, 1, 1_000_000), usize::to_string);

pub(super) const ATTEMPTS: Kind<u32> = open(|text| whole(text, 1, 1000), u32::to_string);

pub(super) const LOSSES: Kind<u32> = open(|text| whole(text, 0, 1000), u32::to_string);

/// At most 2,000 ids a batch keep the plans what they are.
pub(super) const BATCH: Kind<usize> = open(|text| whole(text, 1, 2000), usize::to_string);

pub(super) const MULTIPLIER: Kind<f64> = open(
    |text| {
        let multiplier = text
            .parse()
            .ok()
            .filter(|value| (1.0..=100.0).contains(value));
        multiplier.ok_or_else(|| "must be a number between 1.0 and 100.0".to_owned())
    },
    f64::to_string,
);

pub(super) const RATIO: Kind<f64> = open(
    |text| {
        let ratio = text.parse().ok();
        let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| "must be a number between 0.0 and 1.0".to_owned())
    },
    f64::to_string,
);

/// Empty for none.
pub(super) const COLLECTOR: Kind<Option<String>> = open(
    |text| trace::endpoint(text).map_err(|error| error.to_string()),
    |endpoint| endpoint.clone().unwrap_or_default(),
);

/// None keeps what the database has.
pub(super) const OPTIONAL_BODY_SIZE: Kind<Option<usize>> = open(
    |text| size(text, 1, MAX_BODY).map(Some),
    |bytes| bytes.map_or_else(|| "as stored in the database".to_owned(), show_size),
);

/// Below 4 KiB not even the frame of an empty task fits.
pub(super) const FRAME_SIZE: Kind<usize> = open(
    |text| size(text, 4096, MAX_FRAME),
    |bytes| show_size(*bytes),
);

pub(super) const BOOLEAN: Kind<bool> = open(
    |text| text.parse().map_err(|_| "must be true or false".to_owned()),
    bool::to_string,
);

pub(super) const ADDRESS: Kind<SocketAddr> = open(
    |text| {
        text.parse()
            .map_err(|_| "must be an IP address and port, such as 127.0.0.1:7433".to_owned())
    },
    SocketAddr::to_string,
);

pub(super) const NAME: Kind<String> = open(
    |text| {
        let fits = (1..=200).contains(&text.chars().count()) && !text.contains(char::is_control);
        let name = fits.then(|| text.to_owned());
        name.ok_or_else(|| "must be 1 to 200 characters without control characters".to_owned())
    },
    String::clone,
);

pub(super) const PATH: Kind<Option<PathBuf>> = open(
    |text| Ok((!text.is_empty()).then(|| PathBuf::from(text))),
    |path| {
        path.as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    },
);

pub(super) const LOG_FILTER: Kind<String> = open(
    |text| {
        if is_log_filter(text) {
            return Ok(text.to_owned());
        }
        Err("must be a level (error, warn, info, debug, trace, off) or a list like info,fencepost=debug".to_owned())
    },
    String::clone,
);

/// Whether it filters logs. A word without a level would name a module, so that a misspelt level silenced everything else.
pub fn is_log_filter(text: &str) -> bool {
    let is_named = |part: &str| {
        let part = part.trim();
        // Nothing is a level too, by that parser.
        part.contains('=') || !part.is_empty() && part.parse::<LevelFilter>().is_ok()
    };
    !text.is_empty() && text.split(',').all(is_named) && EnvFilter::try_new(text).is_ok()
}

pub(super) const LOG_FORMAT: Kind<LogFormat> = open(
    |text| match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("must be text or json".to_owned()),
    },
    |format| match format {
        LogFormat::Text => "text".to_owned(),
        LogFormat::Json => "json".to_owned(),
    },
);

pub(super) const DATABASE_URL: Kind<SecretString> = Kind {
    parse: |text| match Settings::check_url(text) {
        Ok(()) => Ok(SecretString::from(text)),
        Err(error) => Err(format!(
            "must be like postgres://user:password@host:5432/database ({error})"
        )),
    },
    show: |_| "(secret)".to_owned(),
    secret: true,
};

/// Longer spans do not fit the tables' milliseconds in 32 bits.
const MAX_DURATION: Duration = Duration::from_hours(24 * 24);

/// Less would be gone before a producer that was cut off has looked again.
const SHORTEST_AGE: Duration = Duration::from_hours(1);

/// Ten years are for ever in every practice, and fit every timestamp.
const LONGEST_AGE: Duration = Duration::from_hours(24 * 3650);

fn span(text: &str, least: Duration) -> Option<Duration> {
    let span = humantime::parse_duration(text).ok();
    span.filter(|span| (least..=LONGEST_AGE).contains(span))
}

fn duration(text: &str, least: Duration) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).ok();
    span.filter(|span| (least..=MAX_DURATION).contains(span))
        .ok_or_else(|| {
            let range = if least.is_zero() {
                "up to 24 days"
            } else {
                "above zero, up to 24 days"
            };
            format!("must be a duration {range}, such as 250ms, 30s or 10m")
        })
}

/// In the largest unit that it is a whole number of, as people write it.
fn show_duration(span: &Duration) -> String {
    const UNITS: [(u128, &str); 4] = [
        (24 * 3_600_000, "days"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
    ];
    let ms = span.as_millis();
    let whole = |(unit, _): &&(u128, &str)| ms > 0 && ms.is_multiple_of(*unit);
    match UNITS.iter().find(whole) {
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None if ms == 0 => "0s".to_owned(),
        None => format!("{ms}ms"),
    }
}

fn whole<T>(text: &str, least: T, most: T) -> Result<T, String>
where
    T: Copy + std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let number = text
        .parse()
        .ok()
        .filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| format!("must be a whole number between {least} and {most}"))
}

const UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

fn size(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let parsed = UNITS
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|number| (number, *factor)))
        .or_else(|| text.strip_suffix('B').map(|number| (number, 1)))
        .unwrap_or((text, 1));
    let number: Option<usize> = parsed.0.trim().parse().ok();
    number
        .and_then(|number| number.checked_mul(parsed.1))
        .filter(|bytes| (least..=most).contains(bytes))
        .ok_or_else(|| {
            let (least, most) = (show_size(least), show_size(most));
            format!("must be a size between {least} and {most}, such as 512KiB or 1MiB")
        })
}

fn show_size(bytes: usize) -> String {
    UNITS
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .map_or_else(
            || format!("{bytes}B"),
            |(unit, factor)| format!("{}{unit}", bytes / factor),
        )
}
