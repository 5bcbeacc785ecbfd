//! Accepts what comes from outside: jobs and inbox items.
//!
//! Owns acknowledgement: what these functions return `Ok` for is durable, once for each key, whatever happens next.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::encode::Encoded;
use model::inbox::Item;
use model::{LOGIC_VERSION, Record, RunId, RunState};
use store::{Commit, Durability, Hash, Put, RecordKind, Require, Stream, Ticket};

use crate::budgets::BatchFacts;
use crate::config::{self, Config};
use crate::configs::Settings;
use crate::driver::load_state;
use crate::error::Error;
use crate::gc::Tomb;
use crate::job::{self, Job, Meta, ModelFacts, Requested};
use crate::keys::{self, Lane};
use crate::models::ModelError;
use crate::provider::ModelProvider;
use crate::routes::{self, Candidate};
use crate::shared::Shared;

/// Code of a run's first record in raw listings.
const KIND_SUBMITTED: u8 = 0;
/// Code of an inbox item in raw listings.
const KIND_ITEM: u8 = 2;

/// What stands before the path of a model that is a file.
const FILES: [&str; 2] = ["rehearsal", "replay"];

/// The most bytes of a session's key.
const SESSION_BYTES_MAX: usize = 1024;

/// A job on its way into the store.
pub(crate) struct Submitting {
    pub(crate) run: RunId,
    pub(crate) lane: Lane,
    ticket: Ticket,
}

/// A job that is durable.
pub(crate) struct Accepted {
    pub(crate) run: RunId,
    /// The lane that it joins.
    pub(crate) lane: Lane,
    /// The key was known: the run was there before.
    pub(crate) is_known: bool,
}

impl Submitting {
    /// Waits for the barrier.
    pub(crate) async fn accepted(self) -> Result<Accepted, Error> {
        let Self { run, lane, ticket } = self;
        match ticket.await {
            Ok(_) => Ok(Accepted { run, lane, is_known: false }),
            Err(store::Error::Duplicate { value }) => {
                let known = value.as_slice().try_into().map(RunId);
                let run = known.map_err(|_| Error::NoSuchRun("under this key".to_owned()))?;
                Ok(Accepted { run, lane, is_known: true })
            }
            // The id of a job in a batch follows from its names: the run was there before.
            Err(store::Error::Conflict { .. }) => Ok(Accepted { run, lane, is_known: true }),
            // The settings that it names were taken back by a barrier that failed meanwhile.
            Err(store::Error::Changed { .. }) => Err(store::Error::Void.into()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Checks a job and hands its first record to the store, after the settings that the run keeps. A program that drives the
/// run itself is `attached`: the run stops at every checkpoint for its abort, as it does for sources.
pub(crate) async fn submit(
    shared: &Shared,
    run: RunId,
    job: &Job,
    settings: &Settings,
    is_attached: bool,
) -> Result<Submitting, Error> {
    let config = shared.configs.now(&settings.config);
    let requested = check(shared, &config, job)?;
    let mut requires = vec![shared.configs.keep(shared, settings).await?];
    let at = shared.clock.now();
    let mut job = job.clone();
    if let Some(dir) = &job.record
        && !is_repeated(shared, &job)?
    {
        job.record = Some(made(dir)?);
    }
    if has_own_workspace(&job) {
        job.workspace = shared.dir.as_deref().map(|dir| keys::own_workspace(dir, run));
    }
    if job.tools.is_none() {
        let known = |name: &String| shared.tools.resolve(name).is_some();
        job.tools = Some(shared.default_tools(&config.defaults.tools).into_iter().filter(known).collect());
    }
    for prompt in &mut job.prompts {
        if let model::Message::User(message) = prompt
            && message.at == model::Millis::default()
        {
            message.at = at;
        }
    }
    let (mut submission, facts) =
        job::submission(run, shared.owner(), &job, settings, shared.wants(), requested)?;
    submission.wants.has_sources |= is_attached;
    let state = RunState::new(&submission, at);
    let (encoded, changes) = Encoded::all(&state);
    let meta = Meta::new(&job, &submission, &facts, at);
    let lane = keys::lane(&submission.session);
    let mut puts: Vec<Put> =
        changes.into_iter().map(|(part, value)| Put { key: keys::part(run, part), value }).collect();
    puts.retain(|put| put.value.is_some());
    puts.push(Put { key: keys::meta(run), value: Some(meta.to_bytes()) });
    puts.push(Put { key: keys::live(at.0, run), value: Some(lane.to_vec()) });
    puts.push(Put { key: keys::newest(at.0, run), value: Some(Vec::new()) });
    if let Some(key) = &job.key {
        let key = keys::submission(key);
        requires.push(Require::Absent { key: key.clone() });
        puts.push(Put { key, value: Some(run.0.to_vec()) });
    }
    let ticket = shared.store.commit(Commit {
        stream: Stream::Run(keys::run_key(run)),
        expect_seq: 0,
        epoch: shared.epoch,
        at_ms: at.0,
        logic_version: LOGIC_VERSION,
        kind: RecordKind { code: KIND_SUBMITTED, carries_messages: true, ends_stream: false },
        payload: Record::Submitted(Box::new(submission)).to_bytes(),
        puts,
        state_hash: Hash(encoded.state_hash()),
        requires,
        durability: Durability::Durable,
    });
    Ok(Submitting { run, lane, ticket })
}

/// True for a job of a batch that names no workspace: each gets one of its own, in the data directory.
fn has_own_workspace(job: &Job) -> bool {
    job.workspace.is_none() && job.batch.is_some() && job.custom_id.is_some()
}

/// Refuses a path that a run cannot keep: its journal holds texts.
fn check_paths(shared: &Shared, job: &Job) -> Result<(), Error> {
    let data = shared.dir.as_deref().filter(|_| has_own_workspace(job));
    let record = job.record.as_deref().and_then(|dir| std::path::absolute(dir).ok());
    let paths = [
        (job.workspace.as_deref(), "use another workspace"),
        (record.as_deref(), "name another directory to record in"),
        (data, "use another data directory, or name a workspace for each job"),
    ];
    match paths
        .into_iter()
        .find_map(|(path, next)| Some((path.filter(|path| path.to_str().is_none())?, next)))
    {
        Some((path, next)) => Err(Error::Job(format!("the path {} is not UTF-8; {next}", path.display()))),
        None => Ok(()),
    }
}

/// True if a run is known under the job's key.
fn is_repeated(shared: &Shared, job: &Job) -> Result<bool, Error> {
    let Some(key) = &job.key else { return Ok(false) };
    Ok(!shared.store.scan(&keys::submission(key), None, 1)?.is_empty())
}

/// A directory to record in, by its absolute path.
fn made(dir: &Path) -> Result<PathBuf, Error> {
    let made = std::path::absolute(dir).and_then(|dir| std::fs::create_dir_all(&dir).map(|()| dir));
    let words =
        |error| format!("{} cannot be made: {error}; name another directory to record in", dir.display());
    made.map_err(|error| Error::Job(words(error)))
}

/// The models that may be asked for a job. Whoever asks for another model than the default wants just that one.
pub(crate) fn candidates(config: &Config, job: &Job, model: &str) -> Arc<[Candidate]> {
    let defaults = &config.defaults;
    let is_strict = job.model.is_some() && job.model != defaults.model;
    let fallback = if is_strict { &[] } else { defaults.fallback.as_slice() };
    let fallback: Vec<String> = fallback.iter().map(|name| with_absolute_path(name).into_owned()).collect();
    routes::candidates(model, &fallback, config)
}

/// The name of a model that is a file, with the file's absolute path: whoever resumes the run may stand elsewhere.
fn with_absolute_path(model: &str) -> Cow<'_, str> {
    let file = model.split_once(':').filter(|(kind, file)| FILES.contains(kind) && !file.is_empty());
    let absolute = |file: &str| std::path::absolute(file).ok()?.into_os_string().into_string().ok();
    match file.and_then(|(kind, file)| Some((kind, absolute(file)?))) {
        Some((kind, path)) => Cow::Owned(format!("{kind}:{path}")),
        None => Cow::Borrowed(model),
    }
}

/// What those models are known by that are served somewhere. One that cannot be called is met when it is asked.
fn served(
    shared: &Shared,
    config: &Config,
    model: &str,
    candidates: &[Candidate],
) -> BTreeMap<String, ModelFacts> {
    let names = std::iter::once(model).chain(candidates.iter().skip(1).map(|other| other.model.as_str()));
    let facts = |name: &str| {
        let provider = shared.models.resolve(name, config).ok()?;
        Some((name.to_owned(), provider.facts()?))
    };
    names.filter_map(facts).collect()
}

/// Refuses a cap in dollars on a model that nobody has said the price of: it would stop nothing.
fn check_cap(
    shared: &Shared,
    config: &Config,
    job: &Job,
    models: &BTreeMap<String, ModelFacts>,
) -> Result<(), Error> {
    let Some((name, _)) = models.iter().find(|(_, facts)| facts.is_unpriced) else { return Ok(()) };
    let own = job.max_usd.unwrap_or(config.defaults.max_usd);
    let of_batch = match &job.batch {
        Some(batch) => BatchFacts::read(&*shared.store, batch)?.caps.usd_micros,
        None => 0,
    };
    if own.micros() == 0 && of_batch == 0 { Ok(()) } else { Err(Error::Job(unpriced(name))) }
}

fn unpriced(model: &str) -> String {
    let key = config::quoted(model);
    format!(
        "model `{model}` has no price, so a cap in dollars would not stop it; say what a million tokens cost \
         (models.{key}.price = {{ input = 0, output = 0 }} if nothing), or cap tokens instead"
    )
}

/// Refuses a job that a cap of its batch in dollars would not stop.
pub(crate) fn check_priced(shared: &Shared, job: &Job) -> Result<(), Error> {
    let settings = shared.configs.in_force();
    let models = check(shared, &settings.config, job)?.models;
    let found = models.iter().find(|(_, facts)| facts.is_unpriced);
    found.map_or(Ok(()), |(name, _)| Err(Error::Job(unpriced(name))))
}

/// Checks a job; answers the model that it asks for.
pub(crate) fn check<'a>(shared: &Shared, config: &'a Config, job: &'a Job) -> Result<Requested<'a>, Error> {
    let named = job.model.as_deref().or(config.defaults.model.as_deref());
    let name = with_absolute_path(named.ok_or(ModelError::Unnamed)?);
    let provider = shared.models.resolve(&name, config)?;
    check_paths(shared, job)?;
    if let Some(workspace) = &job.workspace
        && !workspace.is_dir()
    {
        let path = workspace.display();
        return Err(Error::Job(format!("workspace {path} is not a directory; create it, or name another")));
    }
    if job.session.as_ref().is_some_and(|session| session.is_empty() || session.len() > SESSION_BYTES_MAX) {
        return Err(Error::Job(format!(
            "a session's key has 1 to {SESSION_BYTES_MAX} bytes; use a shorter one"
        )));
    }
    for name in job.tools.iter().flatten() {
        if shared.tools.resolve(name).is_none() {
            let known = shared.tool_names().join(", ");
            return Err(Error::Job(format!("no tool `{name}`; there are: {known}")));
        }
    }
    if let Some(dir) = &job.record {
        check_recordable(shared, job, &name, &*provider, dir)?;
    }
    let candidates = candidates(config, job, &name);
    let models = served(shared, config, &name, &candidates);
    check_cap(shared, config, job, &models)?;
    Ok(Requested { name, identity: provider.identity(), candidates, models })
}

/// Refuses to record what has no raw responses, and to mix two recordings. A job that is repeated under its
/// key goes on with its own.
fn check_recordable(
    shared: &Shared,
    job: &Job,
    model: &str,
    provider: &dyn ModelProvider,
    dir: &Path,
) -> Result<(), Error> {
    if !provider.has_raw_responses() {
        let words = "goes over no network, so there is nothing to record; leave out --record";
        return Err(Error::Job(format!("model `{model}` {words}")));
    }
    if is_repeated(shared, job)? {
        return Ok(());
    }
    match std::fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(false) => {
            let words = "is not empty, and a recording holds one run; name a new directory";
            Err(Error::Job(format!("{} {words}", dir.display())))
        }
        Err(error) => {
            let dir = dir.display();
            Err(Error::Job(format!("{dir} cannot be read: {error}; name a new directory to record in")))
        }
    }
}

/// Puts an item into a run's inbox; answers its position. With a key, the same item is accepted once.
pub(crate) async fn push(
    shared: &Arc<Shared>,
    run: RunId,
    item: &Item,
    key: Option<&str>,
) -> Result<u64, Error> {
    let (state, _) = load_state(&*shared.store, run)?.ok_or_else(|| Error::NoSuchRun(run.to_string()))?;
    let stream = Stream::Inbox(keys::run_key(run));
    let essence = essence(item);
    let stored = key.map(|key| keys::item(run, key));
    let commit = Commit {
        stream,
        expect_seq: 0,
        epoch: shared.epoch,
        at_ms: shared.clock.now().0,
        logic_version: LOGIC_VERSION,
        kind: RecordKind { code: KIND_ITEM, carries_messages: false, ends_stream: false },
        payload: item.to_bytes(),
        puts: stored.iter().map(|key| Put { key: key.clone(), value: Some(essence.clone()) }).collect(),
        state_hash: Hash::default(),
        requires: stored.into_iter().map(|key| Require::Absent { key }).collect(),
        durability: Durability::Durable,
    };
    let taken = state.core.cursors;
    let consumed = taken.steering.min(taken.follow_up).min(taken.control);
    let position = match shared.store.push_inbox(commit, consumed).await {
        Ok(receipt) => receipt.head.seq,
        // The client repeats what was accepted before: nothing is accepted twice.
        Err(store::Error::Duplicate { value }) if value == essence => u64::MAX,
        Err(store::Error::Duplicate { .. }) => return Err(other_use(key.unwrap_or_default())),
        Err(store::Error::Ended { .. }) => return Err(Error::RunEnded(run)),
        Err(error) => return Err(error.into()),
    };
    if let Some(watched) = shared.runs.find(run) {
        watched.inbox.notify_one();
    }
    Ok(position)
}

/// The idempotency key of the `n`th message that a source gave at a poll: a source that is asked again after a death, and
/// gives the same, adds nothing.
pub(crate) fn poll_item_key(poll: &str, n: usize, item: &Item) -> String {
    let essence: String = essence(item).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("poll {poll} {n} {essence}")
}

/// True if something was accepted for the run under this key before.
pub(crate) fn knows(shared: &Shared, run: RunId, key: &str) -> Result<bool, Error> {
    Ok(!shared.store.scan(&keys::item(run, key), None, 1)?.is_empty())
}

/// What makes an item the same when a client repeats it: everything but its time.
fn essence(item: &Item) -> Vec<u8> {
    let bytes = match item {
        Item::Steering(message) => postcard::to_stdvec(&("steering", message.content())),
        Item::FollowUp(message) => postcard::to_stdvec(&("follow_up", message.content())),
        Item::Control(control) => postcard::to_stdvec(&("control", control)),
    };
    blake3::hash(&bytes.unwrap_or_default()).as_bytes().to_vec()
}

/// Refuses a job whose key stands for another one: its prompts would be dropped in silence.
pub(crate) fn check_repeated(shared: &Shared, accepted: &Accepted, job: &Job) -> Result<(), Error> {
    let Some(key) = job.key.as_deref().filter(|_| accepted.is_known) else { return Ok(()) };
    if Tomb::of(&*shared.store, accepted.run)?.is_some() {
        return Err(Error::RunEnded(accepted.run));
    }
    let known = crate::driver::read_first(&*shared.store, accepted.run)?.submission;
    let is_same =
        known.prompts.iter().map(model::Message::content).eq(job.prompts.iter().map(model::Message::content));
    if is_same { Ok(()) } else { Err(other_use(key)) }
}

fn other_use(key: &str) -> Error {
    Error::Job(format!(
        "the key `{key}` was used before for something else; nothing was done, use another key"
    ))
}
