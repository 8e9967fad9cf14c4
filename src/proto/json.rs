//! The worker protocol in JSON: the frames of `worker.proto`, each the text of one message.
//!
//! A frame is an object with one member that is named as the frame; fields have the names of the protocol. What is
//! absent is empty, zero or none; unknown frames and fields are ignored. Numbers of 64 bits are strings of digits,
//! since a double can't hold them, and are read from plain numbers too; tokens are strings; enums are words. A payload
//! is base64 under `payload`, or, where its content type is JSON, stands under `json` as it is: its text is passed
//! on and never turned into numbers and maps, so it loses nothing.
//!
//! Each message is described once, in `messages`; reading and writing are two walks through that description.

mod messages;
mod reader;
mod value;
mod writer;

use bytes::Bytes;

use super::worker::{DispatcherFrame, Task, WorkerFrame};
use reader::Reader;
use value::Value;
use writer::Writer;

/// The content type whose payloads stand in a frame as they are.
const JSON: &str = "application/json";

/// A message that is no frame of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{why}", .place, if .place.is_empty() { "" } else { " " })]
pub struct Malformed {
    /// The field at fault, such as `results.results[0].failed.kind`; empty where the whole is.
    pub place: String,
    /// What it must be.
    pub why: String,
}

/// Reads what a worker says. A result that is malformed in itself, but has a token, is read as the terminal failure
/// `result_invalid` of its task.
///
/// # Errors
/// [`Malformed`], with the first field at fault.
pub fn read_worker_frame(text: &str) -> Result<WorkerFrame, Malformed> {
    let mut frame = WorkerFrame::default();
    Reader::read(text, |reader| {
        messages::worker_frame(reader, &mut frame.frame);
    })?;
    Ok(frame)
}

/// Reads what a dispatcher says.
///
/// # Errors
/// [`Malformed`], with the first field at fault.
pub fn read_dispatcher_frame(text: &str) -> Result<DispatcherFrame, Malformed> {
    let mut frame = DispatcherFrame::default();
    Reader::read(text, |reader| {
        messages::dispatcher_frame(reader, &mut frame.frame);
    })?;
    Ok(frame)
}

/// Writes what a worker says.
#[must_use]
pub fn write_worker_frame(mut frame: WorkerFrame) -> String {
    Writer::write(|writer| messages::worker_frame(writer, &mut frame.frame))
}

/// Writes what a dispatcher says.
#[must_use]
pub fn write_dispatcher_frame(mut frame: DispatcherFrame) -> String {
    Writer::write(|writer| messages::dispatcher_frame(writer, &mut frame.frame))
}

/// Bytes that a task takes in a frame.
#[must_use]
pub fn task_bytes(task: &Task) -> usize {
    // Everything but the payload, which may be large and whose share is known without writing it.
    let mut head = Task {
        payload: Bytes::new(),
        ..task.clone()
    };
    let head = Writer::write(|writer| messages::task(writer, &mut head)).len();
    head + writer::body_bytes(&task.payload, &task.content_type)
}

/// A walk through the fields of a message.
trait Fields: Sized {
    /// A field with a value of its own.
    fn value<V: Value>(&mut self, name: &'static str, value: &mut V);

    /// An enum: the place of a word in the list is its number, and the first, which is empty, stands for none.
    fn word(&mut self, name: &'static str, number: &mut i32, words: &'static [&'static str]);

    /// The two fields of a payload.
    fn body(&mut self, payload: &mut Bytes, content_type: &mut String);

    /// Messages.
    fn list<T: Default>(
        &mut self,
        name: &'static str,
        list: &mut Vec<T>,
        fields: impl Fn(&mut Self, &mut T),
    );

    /// A message of a choice, of which there is one at most.
    fn arm<T: Default>(
        &mut self,
        name: &'static str,
        message: &mut Option<T>,
        fields: impl FnOnce(&mut Self, &mut T),
    );

    /// The message is not what it must be.
    fn refuse(&mut self, name: &'static str, why: &str);

    /// A part whose faults are answered instead of counting for the whole.
    fn contained(&mut self, part: impl FnOnce(&mut Self)) -> Option<Malformed>;
}

#[cfg(test)]
mod tests;
