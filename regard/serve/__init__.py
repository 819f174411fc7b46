"""A run as an HTTP server, with the page that looks into it: `regard serve RUN`.

server       the socket, and how it is let go
patience     connections on which nothing moves
guard        whose request it is, and how large it may become
strict       how a request is read, and how a failure is told
app          the routes
schema       what may be asked
front        a place in the waiting room for each request
queue        the waiting room, and the thread that steps the engine
writing      from a text to what an engine is asked
reading      what is read in one go
completions  in OpenAI's shape, whole or piece by piece
spelling     from tokens to text while they come
events       server-sent events
models       the runs: loading, finding, letting go
training     how a run was trained
trace        what the page asks for
metrics      what has happened, counted
refusal      what a client is told that gets no answer
"""
