//! `sprag verify`: checks every byte of the journal.

use engine::doctor::stream_name;
use model::RunId;
use serde_json::{Value, json};
use store::{Finding, Report, RunKey, Seq, Stream};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Output;
use crate::status::Status;
use crate::text::count;

/// Check framing, hashes and chains of the journal; reads the journal alone
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sprag verify")]
pub(crate) struct Verify {
    /// Runs whose heads are shown: ids, or beginnings of them; the whole journal is checked all the same
    runs: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(crate) fn run(self, context: &Context) -> Result<Status, Failure> {
        if !context.has_journal()? {
            let message = format!(
                "there is no journal in {}; name another directory with --data",
                context.dir().display()
            );
            return Err(Failure::new(Status::Store, message));
        }
        let report = store::verify(context.dir()).map_err(|error| Failure::from(error).while_checking())?;
        let runs = self.find(&report)?;
        let mut output = context.output();
        if self.json {
            output.json(&to_json(&report, &runs))?;
        } else {
            write(&mut output, &report, &runs)?;
        }
        output.flush()?;
        Ok(if report.findings.is_empty() { Status::Done } else { Status::Damage })
    }

    /// The runs asked for, with their heads, purged ones included. The report knows every run, also of a journal that is damaged.
    fn find(&self, report: &Report) -> Result<Vec<(RunId, store::Head)>, Failure> {
        let heads = report.heads.iter().filter_map(|(stream, head)| match stream {
            Stream::Run(run) => Some((run, head)),
            Stream::Own(_) | Stream::Inbox(_) => None,
        });
        let all: Vec<(RunId, store::Head)> =
            heads.chain(&report.purged).map(|(run, head)| (RunId(run.0), *head)).collect();
        let find = |name: &String| {
            let wanted = name.to_ascii_lowercase();
            let found: Vec<_> = all.iter().filter(|(run, _)| run.to_string().starts_with(&wanted)).collect();
            match found.as_slice() {
                [one] => Ok(**one),
                [] => Err(engine::Error::NoSuchRun(name.clone()).into()),
                _ => Err(Failure::usage(format!(
                    "`{name}` may be any of {} runs; give more digits",
                    found.len()
                ))),
            }
        };
        self.runs.iter().map(find).collect()
    }
}

fn to_json(report: &Report, runs: &[(RunId, store::Head)]) -> Value {
    let findings = report.findings.iter().map(|finding| {
        let (stream, seq) = place(finding.record);
        json!({
            "segment": finding.segment, "offset": finding.offset, "stream": stream, "seq": seq,
            "reason": finding.reason,
        })
    });
    let heads = runs
        .iter()
        .map(|(run, head)| json!({ "run": run.to_string(), "seq": head.seq, "hash": head.hash.to_string() }));
    json!({
        "segments": report.segments, "groups": report.groups, "frames": report.frames,
        "streams": report.heads.len(), "redacted": report.redacted,
        "purged": report.purged.len(), "dropped": report.dropped,
        "findings": findings.collect::<Vec<_>>(),
        "tail": report.tail.as_ref().map(|tail| json!({
            "segment": tail.segment, "offset": tail.offset, "reason": tail.reason,
        })),
        "head": { "frames": report.end.position, "hash": report.end.hash.to_string() },
        "runs": heads.collect::<Vec<_>>(),
    })
}

fn write(output: &mut Output, report: &Report, runs: &[(RunId, store::Head)]) -> std::io::Result<()> {
    let style = output.style;
    for finding in &report.findings {
        let Finding { segment, offset, record, reason } = finding;
        let record = match record {
            Some((stream, seq)) => format!(", record {seq} of {}", stream_name(*stream)),
            None => String::new(),
        };
        output.line(format!(
            "{} {} at offset {offset}{record}: {reason}",
            style.bad("damage"),
            segment.display()
        ))?;
    }
    let checked = format!(
        "{}, {}, {} of {}",
        count(report.segments, "segment"),
        count(report.groups, "group"),
        count(report.frames, "frame"),
        count(report.heads.len() as u64, "stream"),
    );
    if report.findings.is_empty() {
        output.line(format!("{}: {checked}; head {}", style.good("whole"), report.end.hash))?;
    } else {
        let findings = count(report.findings.len() as u64, "bad place");
        output.line(format!("{findings} in {checked}; restore the journal directory from a copy"))?;
    }
    if !report.purged.is_empty() {
        let (runs, frames) = (report.purged.len() as u64, report.dropped);
        output.line(format!(
            "{} purged, with {}; the chain holds",
            count(runs, "run"),
            count(frames, "frame")
        ))?;
    }
    if report.redacted > 0 {
        output.line(format!("{} redacted; the chain holds", count(report.redacted, "payload")))?;
    }
    if let Some(tail) = &report.tail {
        let segment = tail.segment.display();
        output.line(format!(
            "behind the end, {segment} at offset {}: {} (torn by a crash, still being written, or changed since)",
            tail.offset, tail.reason
        ))?;
    }
    for (run, head) in runs {
        let purged = if report.purged.contains_key(&RunKey(run.0)) { " (purged)" } else { "" };
        output.line(format!("run {run}{purged}: head {} at record {}", head.hash, head.seq))?;
    }
    Ok(())
}

fn place(record: Option<(Stream, Seq)>) -> (Option<String>, Option<Seq>) {
    (record.map(|(stream, _)| stream_name(stream)), record.map(|(_, seq)| seq))
}
