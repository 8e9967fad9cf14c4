//! One operation: what it takes, what it answers, what it refuses with.

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::openapi::path::{
    HttpMethod, Operation as Described, OperationBuilder, Parameter, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::schema::{
    AllOf, ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, SchemaType, Type,
};
use utoipa::openapi::{Content, PathItem, Paths, Ref, RefOr, Required, Response, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::api::{CODES, status_of};

/// What the database may answer to every call.
pub(super) const DATABASE: &[&str] = &["FP-109", "FP-110", "FP-112", "FP-113", "FP-114"];
/// What parameters may be refused with.
pub(super) const PARAMETERS: &[&str] = &["FP-102", "FP-103"];
/// What a body that must be there may be refused with.
pub(super) const BODY: &[&str] = &["FP-101", "FP-102", "FP-103", "FP-105", "FP-108"];
/// What a body that may be missing may be refused with.
pub(super) const LOOSE_BODY: &[&str] = &["FP-101", "FP-102", "FP-103", "FP-105"];
/// What a task may be refused with.
pub(super) const TASK: &[&str] = &[
    "FP-001", "FP-002", "FP-003", "FP-004", "FP-005", "FP-006", "FP-007", "FP-008", "FP-009",
    "FP-010", "FP-011", "FP-015",
];

/// Problem details (RFC 9457) with the extensions of fencepost.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the error writes by itself")]
pub(super) struct Problem {
    /// `urn:fencepost:error:` and the code.
    r#type: String,
    /// The name in words.
    title: String,
    /// The status of this answer.
    status: u16,
    /// A sentence for people.
    detail: String,
    /// Stable: match on this. docs/errors.md says what to do about each.
    code: String,
    /// The name of the rule.
    slug: String,
    /// The field at fault.
    #[schema(required = false, nullable = false)]
    field: Option<String>,
    /// The worker's name for what went wrong, where a worker failed.
    #[schema(required = false, nullable = false)]
    class: Option<String>,
}

impl Problem {
    /// The schema, with every code that this door can answer.
    pub(super) fn described() -> RefOr<Schema> {
        let mut schema = Self::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            let codes = CODES.iter().map(|known| known.code);
            let code = one_of(codes).description(Some(
                "Stable: match on this. docs/errors.md says what to do about each.",
            ));
            object.properties.insert("code".to_owned(), code.into());
        }
        schema
    }
}

/// A string out of these.
pub(super) fn one_of<'v>(values: impl IntoIterator<Item = &'v str>) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::String))
        .enum_values(Some(values.into_iter().map(Value::from)))
}

/// Any string.
pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::String))
}

/// An id: digits, since it passes 2^53.
pub(super) fn id() -> ObjectBuilder {
    text().pattern(Some("^[0-9]{1,18}$"))
}

/// A time.
pub(super) fn instant() -> ObjectBuilder {
    text().format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
}

/// `true` or `false`.
pub(super) fn truth() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::Boolean))
}

/// A whole number.
pub(super) fn integer(minimum: i64, maximum: i64) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Integer))
        .minimum(Some(minimum))
        .maximum(Some(maximum))
}

/// An operation to be.
pub(super) struct Operation {
    method: HttpMethod,
    path: &'static str,
    described: Described,
    answers: BTreeMap<u16, Response>,
    codes: Vec<&'static str>,
    schemas: Vec<(String, RefOr<Schema>)>,
}

impl Operation {
    pub(super) fn new(
        method: HttpMethod,
        path: &'static str,
        (tag, id): (&str, &str),
        summary: &str,
    ) -> Self {
        let described = OperationBuilder::new()
            .tag(tag)
            .operation_id(Some(id))
            .summary(Some(summary));
        // Of what web pages of other hosts ask, nothing that changes anything is done.
        let codes = match method {
            HttpMethod::Get => Vec::new(),
            _ => vec!["FP-118"],
        };
        Self {
            method,
            path,
            described: described.build(),
            answers: BTreeMap::new(),
            codes,
            schemas: Vec::new(),
        }
    }

    pub(super) fn get(path: &'static str, names: (&str, &str), summary: &str) -> Self {
        Self::new(HttpMethod::Get, path, names, summary)
    }

    pub(super) fn post(path: &'static str, names: (&str, &str), summary: &str) -> Self {
        Self::new(HttpMethod::Post, path, names, summary)
    }

    /// More than the summary says.
    pub(super) fn about(mut self, text: &str) -> Self {
        self.described.description = Some(text.to_owned());
        self
    }

    fn parameter(mut self, parameter: Parameter) -> Self {
        let parameters = self.described.parameters.get_or_insert_default();
        parameters.push(parameter.into());
        self
    }

    /// A part of the path.
    pub(super) fn path(self, name: &str, schema: ObjectBuilder, about: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Path)
            .required(Required::True)
            .description(Some(about))
            .schema(Some(schema.build()));
        self.parameter(parameter.build())
    }

    /// A parameter, which may be absent.
    pub(super) fn query(self, name: &str, schema: ObjectBuilder, about: &str) -> Self {
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(about))
            .schema(Some(schema.build()));
        self.parameter(parameter.build())
    }

    /// `limit`, and where the page begins.
    pub(super) fn page(self, from: &str, schema: ObjectBuilder, default: i64) -> Self {
        let limit = integer(1, 1_000).default(Some(default.into()));
        self.query(from, schema, "The `next` of the page before this one.")
            .query("limit", limit, "Lines of a page at most.")
    }

    /// A JSON body.
    pub(super) fn body<T: ToSchema>(mut self, required: Required) -> Self {
        let content = Content::new(Some(self.reference::<T>()));
        let body = RequestBody::new();
        let body = utoipa::openapi::request_body::RequestBodyBuilder::from(body)
            .required(Some(required))
            .content("application/json", content);
        self.described.request_body = Some(body.build().into());
        self
    }

    fn reference<T: ToSchema>(&mut self) -> RefOr<Schema> {
        T::schemas(&mut self.schemas);
        let name = T::name().into_owned();
        self.schemas.push((name.clone(), T::schema()));
        RefOr::Ref(Ref::from_schema_name(name))
    }

    /// A JSON answer.
    pub(super) fn answers<T: ToSchema>(mut self, status: u16, about: &str) -> Self {
        let content = Content::new(Some(self.reference::<T>()));
        self.answer(status, about, "application/json", content)
    }

    /// A JSON answer, or a list of such.
    pub(super) fn answers_one_or_many<T: ToSchema>(mut self, status: u16, about: &str) -> Self {
        let one = self.reference::<T>();
        let many = ArrayBuilder::new().items(one.clone()).build();
        let either = utoipa::openapi::OneOfBuilder::new().item(one).item(many);
        let content = Content::new(Some(Schema::from(either.build())));
        self.answer(status, about, "application/json", content)
    }

    /// One answer or another, by what was asked.
    pub(super) fn answers_either<A: ToSchema, B: ToSchema>(
        mut self,
        status: u16,
        about: &str,
    ) -> Self {
        let (one, other) = (self.reference::<A>(), self.reference::<B>());
        let either = utoipa::openapi::schema::AnyOfBuilder::new()
            .item(one)
            .item(other);
        let content = Content::new(Some(Schema::from(either.build())));
        self.answer(status, about, "application/json", content)
    }

    /// An answer that is no JSON.
    pub(super) fn answers_text(self, status: u16, about: &str, kind: &str) -> Self {
        let content = Content::new(Some(text().build()));
        self.answer(status, about, kind, content)
    }

    fn answer(mut self, status: u16, about: &str, kind: &str, content: Content) -> Self {
        // One status may come with several kinds of content.
        let response = self.answers.entry(status);
        let response = response.or_insert_with(|| Response::new(about));
        response.content.insert(kind.to_owned(), content.into());
        self
    }

    /// The codes that it can refuse with.
    pub(super) fn refuses(mut self, groups: &[&[&'static str]]) -> Self {
        self.codes.extend(groups.iter().copied().flatten());
        self.codes.sort_unstable();
        self.codes.dedup();
        self
    }

    /// The codes by their statuses, each status with a problem of one of its codes.
    fn problems(&self) -> BTreeMap<u16, Response> {
        let mut by_status: BTreeMap<u16, Vec<&'static str>> = BTreeMap::new();
        for known in CODES
            .iter()
            .filter(|known| self.codes.contains(&known.code))
        {
            let status = status_of(known.kind).as_u16();
            by_status.entry(status).or_default().push(known.code);
        }
        let described = by_status.into_iter().map(|(status, codes)| {
            let names = codes.iter().filter_map(|code| {
                let known = CODES.iter().find(|known| known.code == *code)?;
                Some(format!("{} {}", known.code, known.slug))
            });
            let about = names.collect::<Vec<_>>().join(", ");
            let only = ObjectBuilder::new().property("code", one_of(codes));
            let mut problem = AllOf::new();
            problem
                .items
                .push(Ref::from_schema_name(Problem::name()).into());
            problem.items.push(Schema::from(only.build()).into());
            let content = Content::new(Some(Schema::from(problem)));
            let mut response = Response::new(about);
            let kind = "application/problem+json".to_owned();
            response.content.insert(kind, content.into());
            (status, response)
        });
        described.collect()
    }

    pub(super) fn add_to(mut self, paths: &mut Paths, schemas: &mut Vec<(String, RefOr<Schema>)>) {
        let problems = self.problems();
        self.answers.extend(problems);
        for (status, response) in self.answers {
            let responses = &mut self.described.responses.responses;
            responses.insert(status.to_string(), response.into());
        }
        schemas.append(&mut self.schemas);
        let item = PathItem::new(self.method, self.described);
        match paths.paths.get_mut(self.path) {
            Some(there) => there.merge_operations(item),
            None => {
                paths.paths.insert(self.path.to_owned(), item);
            }
        }
    }
}
