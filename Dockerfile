# One image for every server process: worker, gateway, projector, archiver and the `turnlog` command.
FROM python:3.13-slim

RUN useradd --create-home --uid 10001 turnlog
WORKDIR /opt/turnlog
COPY pyproject.toml README.md LICENSE ./
COPY turnlog turnlog
COPY streams streams
COPY connectors connectors
COPY ops ops
COPY schemas schemas
RUN pip install --no-cache-dir '.[server,s3,tracing]'
# A named volume takes over whose this folder is.
RUN install --directory --owner turnlog /var/lib/turnlog/archive

USER turnlog
ENTRYPOINT ["turnlog"]
CMD ["--help"]
